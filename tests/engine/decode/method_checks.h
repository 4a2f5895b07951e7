// What every method owes in which the large model verifies, checked for each in the same way: `use`
// gives a request its method and roles.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/decode/methods_kit.h"
#include "tests/sanitized.h"

namespace tandem::test {

// Random requests, eight at once in each of `boxes` boxes (a quarter of them under sanitizers),
// against what a reference says without caches (docs/reliability.md, oracles 1, 8, 9). `make` gives
// a case: its `box`; ask(spec, rng), which gives a request its method and tells what is expected,
// at least `tokens`; and compare(recorder, expected) of the rest.
template <class Make>
void expect_equals_reference(uint64_t first_seed, int boxes, const Make& make) {
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(cases(boxes));
       ++seed) {
    Rng rng(seed);
    auto c = make(rng);
    using Expected = decltype(c->ask(std::declval<SequenceSpec&>(), rng));
    std::vector<std::pair<std::shared_ptr<Recorder>, Expected>> all;
    for (int i = 0; i < 8; ++i) {
      SequenceSpec s = random_spec(c->box, rng, chance(rng, 50));
      Expected expected = c->ask(s, rng);
      all.emplace_back(c->box.submit(std::move(s)), std::move(expected));
    }
    c->box.pump();
    for (const auto& [recorder, expected] : all) {
      EXPECT_TRUE(recorder->ok()) << recorder->end.status;
      EXPECT_EQ(recorder->tokens, expected.tokens);
      c->compare(*recorder, expected);
    }
    c->box.expect_idle();
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

// docs/reliability.md, oracle 5: whatever is drafted and dropped leaves no row behind. Returns how
// many cache rows were looked at.
int64_t expect_final_rows_only(int boxes, const std::function<void(SequenceSpec&, Rng&)>& use);

// EXACT under sampling: `requests` with temperatures, truncations, penalties and seeds
// give the tokens of autoregressive decoding, one by one. `seen` is shown what each cost.
void expect_the_tokens_of_ar(int requests, const std::function<void(SequenceSpec&, Rng&)>& use,
                             const std::function<void(const MethodStats&)>& seen);

// Every way to end, at every place: cut exactly where autoregressive decoding is cut.
void expect_stops_where_ar_does(const BoxOptions& options,
                                const std::function<void(SequenceSpec&)>& use);

// Runs `s`: the large model confirmed every token, and its log-probabilities are reported.
std::shared_ptr<Recorder> expect_logprobs_of_large(Box& box, SequenceSpec s);

// Runs make(seed) for seeds 0 to n - 1, two hundred at once, and shows each answer to `see`.
void sample(Box& box, uint64_t n, const std::function<SequenceSpec(uint64_t seed)>& make,
            const std::function<void(const Recorder&)>& see);

}  // namespace tandem::test
