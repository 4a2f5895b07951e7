// The engine's autoregressive decoding equals the reference, greedy and sampled
// (docs/reliability.md, oracle 8).
#include "tests/reference/autoregressive.h"

#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

TEST(Reference, AutoregressiveEqualsTheEngine) {
  Box box{BoxOptions()};
  std::mt19937_64 rng(1);
  for (int i = 0; i < 1000; ++i) {
    SequenceSpec s = box.spec(random_prompt(rng, 1, 12), 1 + static_cast<int>(rng() % 8));
    s.warp.temperature = rng() % 3 ? 0.5F + static_cast<float>(rng() % 100) / 100 : 0;
    if (rng() % 2) s.warp.top_k = 1 + static_cast<int>(rng() % 20);
    if (rng() % 2) s.warp.top_p = 0.5F + static_cast<float>(rng() % 50) / 100;
    s.warp.seed = rng();
    s.warp.choice = static_cast<uint32_t>(rng() % 3);
    if (rng() % 3 == 0) s.warp.typical_p = 0.3F + static_cast<float>(rng() % 70) / 100;
    s.stops.eos = {static_cast<Token>(rng() % 40)};
    if (rng() % 2) s.warp.processors = random_processors(rng, s);
    const auto expected = reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                                    s.stops.max_new_tokens);
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    ASSERT_EQ(r->tokens, expected) << i;
  }
}

}  // namespace
}  // namespace tandem::test
