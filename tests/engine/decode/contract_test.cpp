// The contract carries whole methods: BiLD, early exit, speculative sampling and BiTA's trees, run
// concurrently, on small pools, in any order, equal autoregressive decoding where the papers say so
// (docs/reliability.md, method oracles).
#include "tests/engine/decode/pairs.h"
#include "tests/engine/decode/sketches.h"

namespace tandem::test {
namespace {

constexpr int kLength = 14;

using Method = std::function<Task<void>(Gen)>;

// Runs `n` random prompts at once, by `method` and by autoregressive decoding; they must agree.
void expect_equals_ar(const BoxOptions& options, const std::vector<CastRole>& roles, uint64_t seed,
                      float temperature, const Method& method, int n = 6) {
  Box box{options};
  std::mt19937_64 rng(seed);
  std::vector<std::pair<std::shared_ptr<Recorder>, std::shared_ptr<Recorder>>> all;
  for (int i = 0; i < n; ++i) {
    const int vocab = options.models[0].config.vocab_size;
    const auto prompt = random_prompt(rng, 1, 14, vocab);
    const std::vector<Token> eos = {static_cast<Token>(rng() % static_cast<uint64_t>(vocab))};
    std::shared_ptr<Recorder> both[2];
    for (auto& r : both) {
      SequenceSpec s = box.spec(prompt, kLength);
      s.stops.eos = eos;
      s.warp.temperature = temperature;
      s.warp.seed = seed + static_cast<uint64_t>(i);
      if (&r == &both[0]) {
        s.method = method;
        s.cast = make_cast(roles);
      }
      r = box.submit(std::move(s));
    }
    all.emplace_back(both[0], both[1]);
  }
  box.pump();
  for (const auto& [a, b] : all) {
    ASSERT_TRUE(a->ok()) << "seed " << seed << ": " << a->end.status;
    ASSERT_TRUE(b->ok());
    ASSERT_EQ(a->tokens, b->tokens) << "seed " << seed;
    EXPECT_EQ(a->end.reason, b->end.reason);
  }
  box.expect_idle();
}

BildArgs random_bild(uint64_t seed) {
  std::mt19937_64 rng(seed);
  return {1 + static_cast<int>(rng() % 6), static_cast<float>(rng() % 100) / 100, 0.69F};
}

TEST(Contract, GreedyBildWithRollbackUnderLn2IsAr) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const BildArgs args = random_bild(seed);
    expect_equals_ar(pair_of(seed, static_cast<int>(seed % 2)), two_models(), seed, 0,
                     [&stats, args](Gen g) { return bild(g, args, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.rollbacks, 100);
  EXPECT_GT(stats.fallbacks, 100);
}

TEST(Contract, EarlyExitBildIsAr) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const BildArgs args = random_bild(seed);
    expect_equals_ar(pair_of(seed, 0), early_exit(2), seed, 0,
                     [&stats, args](Gen g) { return bild(g, args, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.rollbacks, 100);
}

TEST(Contract, BildThatAlwaysFallsBackIsArSampledToo) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    expect_equals_ar(pair_of(seed, 1), two_models(), seed, 0.8F,
                     [&stats](Gen g) { return bild(g, {4, 1.1F, kInf}, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(stats.rollbacks, 0);
}

TEST(Contract, AModelNeverRollsItselfBack) {
  SketchStats stats;
  BoxOptions o = pair_of(1, 1);
  o.models[1].config = o.models[0].config;
  expect_equals_ar(o, two_models(), 1, 0, [&stats](Gen g) { return bild(g, {5, 0, 0}, &stats); });
  EXPECT_EQ(stats.rollbacks, 0);
}

TEST(Contract, GreedySpeculativeIsAr) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    BoxOptions o = pair_of(seed, static_cast<int>(seed % 2));
    if (seed % 3 == 0) o.models[1].config = o.models[0].config;  // all drafts are good
    const int gamma = 1 + static_cast<int>(seed % 5);
    expect_equals_ar(o, two_models(), seed, 0,
                     [&stats, gamma](Gen g) { return speculative(g, gamma, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.accepted, 500);
}

// p == q: everything is accepted, whatever is drawn.
TEST(Contract, SampledDraftsOfTheSameModelAreAllAccepted) {
  BoxOptions o = pair_of(1, 1);
  o.models[1].config = o.models[0].config;
  Box box{o};
  SketchStats stats;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SequenceSpec s = box.spec({1, 2, 3}, 12);
    s.warp.temperature = 1;
    s.warp.seed = seed;
    s.cast = make_cast(two_models());
    s.method = [&stats](Gen g) { return speculative(g, 3, &stats); };
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok()) << r->end.status;
    EXPECT_EQ(r->end.stats.large_passes, 4) << "1, 4, 4 and 3 tokens";
  }
  EXPECT_EQ(stats.accepted, 40 * 8);
}

TEST(Contract, SampledSpeculativeDependsOnTheSeedAlone) {
  const auto run = [](uint64_t order) {
    BoxOptions o = pair_of(order, static_cast<int>(order % 2));
    if (order > 0) o.models[0].pool.pages = 10;
    Box box{o};
    SketchStats stats;
    std::vector<std::shared_ptr<Recorder>> all;
    for (uint64_t i = 0; i < 8; ++i) {
      SequenceSpec s = box.spec({static_cast<Token>(i), 2, 3}, 16);
      s.warp.temperature = 1.5F;
      s.warp.seed = i;
      s.cast = make_cast(two_models());
      s.method = [&stats](Gen g) { return speculative(g, 3, &stats); };
      all.push_back(box.submit(std::move(s)));
    }
    box.pump();
    std::vector<std::vector<Token>> tokens;
    for (const auto& r : all) {
      EXPECT_TRUE(r->ok()) << r->end.status;
      tokens.push_back(r->tokens);
    }
    EXPECT_GT(stats.accepted, 0);
    return tokens;
  };
  const auto expected = run(0);
  for (uint64_t order = 1; order < 20; ++order) EXPECT_EQ(run(order), expected) << order;
}

TEST(Contract, TreesAreArGreedyAndSampled) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const int M = 1 + static_cast<int>(seed % 3), k = 1 + static_cast<int>(seed % 4);
    const auto tree = static_cast<BitaTreeKind>(seed % 6);
    BoxOptions o = pair_of(seed, 0);
    o.models[0].config.vocab_size = 8;  // so that guesses are right now and then
    expect_equals_ar(
        o, {{Role::kLarge, ModelId(0), 0}}, seed, seed % 2 ? 0.9F : 0,
        [&stats, M, k, tree](Gen g) { return bita(g, {M, k, tree, Pace::kFixed}, &stats); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stats.accepted, 500);
}

TEST(Contract, SmallPoolsPreemptMethodsAndChangeNothing) {
  SketchStats stats;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    BoxOptions o = pair_of(seed, static_cast<int>(seed % 2));
    // A prompt of 14, 14 tokens and a run of 4 at most: 8 pages of 4 rows hold one.
    for (BoxModel& m : o.models) m.pool = {4, 9, 9};
    const BildArgs args = {4, 0.3F, 0.69F};
    const auto spec = [&stats](Gen g) { return speculative(g, 4, &stats); };
    const auto big = [&stats, args](Gen g) { return bild(g, args, &stats); };
    expect_equals_ar(o, two_models(), seed, 0, seed % 2 ? Method(big) : Method(spec));
    expect_equals_ar(o, early_exit(2), seed, 0, big);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::test
