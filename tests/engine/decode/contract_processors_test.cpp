// Processors under methods that draft: what a request's penalties count is what was emitted,
// however many wrong tokens were fed and dropped on the way. So every method that is EXACT stays
// so, token for token, with any processors; the reference counts the plain sequence.
#include "engine/decode/autoregressive.h"
#include "tests/engine/decode/pairs.h"
#include "tests/engine/decode/sketches.h"
#include "tests/reference/autoregressive.h"
#include "tests/sanitized.h"

namespace tandem::test {
namespace {

using Method = std::function<Task<void>(Gen)>;

constexpr int kAnswer = 14;

// Runs `n` random prompts under random processors at once.
void expect_reference(const BoxOptions& options, const std::vector<CastRole>& roles, uint64_t seed,
                      float temperature, const Method& method, int64_t* preemptions = nullptr) {
  Box box{options};
  std::mt19937_64 rng(seed);
  const int vocab = options.models[0].config.vocab_size;
  std::vector<std::shared_ptr<Recorder>> all;
  std::vector<std::vector<Token>> expected;
  for (int i = 0; i < 8; ++i) {
    SequenceSpec s = box.spec(random_prompt(rng, 1, 14, vocab), kAnswer);
    s.stops.eos = {static_cast<Token>(rng() % static_cast<uint64_t>(vocab))};
    s.warp.temperature = temperature;
    s.warp.seed = rng();
    s.warp.processors = random_processors(rng, s, vocab);
    s.cast = make_cast(roles);
    s.method = method;
    expected.push_back(
        reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos, kAnswer));
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i]->ok()) << "seed " << seed << ": " << all[i]->end.status;
    ASSERT_EQ(all[i]->tokens, expected[i]) << "seed " << seed << ", prompt " << i;
  }
  box.expect_idle();
  if (preemptions) *preemptions += box.metrics.preemptions.value();
}

TEST(ContractProcessors, Autoregressive) {
  for (uint64_t seed = 0; seed < cases(150); ++seed) {
    expect_reference(pair_of(seed, static_cast<int>(seed % 2)), {{Role::kLarge, ModelId(0), 0}},
                     seed, seed % 2 ? 0.9F : 0, autoregressive);
    if (HasFatalFailure()) return;
  }
}

TEST(ContractProcessors, GreedyBild) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < cases(200); ++seed) {
    const BildArgs args = {1 + static_cast<int>(seed % 6), static_cast<float>(seed % 4) / 8, 0.69F};
    BoxOptions o = pair_of(seed, static_cast<int>(seed % 2));
    if (seed % 2) {  // so that both models are sure of the same token now and then
      for (BoxModel& m : o.models) m.config.vocab_size = 6;
    }
    expect_reference(o, seed % 3 == 0 ? early_exit(2) : two_models(), seed, 0,
                     [&stats, args](Gen g) { return bild(g, args, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.rollbacks, cases(1000));
}

TEST(ContractProcessors, GreedySpeculative) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < cases(200); ++seed) {
    BoxOptions o = pair_of(seed, static_cast<int>(seed % 2));
    if (seed % 3 == 0) o.models[1].config = o.models[0].config;  // all drafts are good
    const int gamma = 1 + static_cast<int>(seed % 5);
    expect_reference(o, two_models(), seed, 0,
                     [&stats, gamma](Gen g) { return speculative(g, gamma, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.accepted, cases(1000));
}

TEST(ContractProcessors, TreesGreedyAndSampled) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < cases(200); ++seed) {
    const int M = 1 + static_cast<int>(seed % 3), k = 1 + static_cast<int>(seed % 4);
    const auto tree = static_cast<BitaTreeKind>(seed % 6);
    BoxOptions o = pair_of(seed, static_cast<int>(seed % 2));
    o.models[0].config.vocab_size = 8;  // so that guesses are right now and then
    expect_reference(
        o, {{Role::kLarge, ModelId(0), 0}}, seed, seed % 2 ? 0.9F : 0,
        [&stats, M, k, tree](Gen g) { return bita(g, {M, k, tree, Pace::kFixed}, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.accepted, cases(1000));
}

TEST(ContractProcessors, EvictedRowsCountOnce) {
  SketchStats stats;
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < cases(80); ++seed) {
    BoxOptions o = pair_of(seed, static_cast<int>(seed % 2));
    for (BoxModel& m : o.models) m.pool = {4, 9, 9};
    const auto spec = [&stats](Gen g) { return speculative(g, 4, &stats); };
    const auto big = [&stats](Gen g) { return bild(g, {4, 0.1F, 0.69F}, &stats); };
    expect_reference(o, two_models(), seed, 0, seed % 2 ? Method(big) : Method(spec), &preemptions);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(preemptions, cases(100));
}

// p == q under the same processors: what each model counts of its own cache is the same, so all
// drafts stay.
TEST(ContractProcessors, SampledDraftsOfTheSameModelAreAllAccepted) {
  BoxOptions o = pair_of(1, 1);
  o.models[1].config = o.models[0].config;
  Box box{o};
  SketchStats stats;
  std::mt19937_64 rng(1);
  for (uint64_t seed = 0; seed < cases(200); ++seed) {
    SequenceSpec s = box.spec(random_prompt(rng, 1, 10), 12);
    s.warp.temperature = 1;
    s.warp.typical_p = 0.9F;
    s.warp.seed = seed;
    s.warp.processors = random_processors(rng, s);
    s.cast = make_cast(two_models());
    s.method = [&stats](Gen g) { return speculative(g, 3, &stats); };
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->end.stats.large_passes, 4) << "1, 4, 4 and 3 tokens; seed " << seed;
  }
}

}  // namespace
}  // namespace tandem::test
