// Models with encoders: methods for decoders run on them unchanged, and evicted encoder rows are
// recomputed without the method's help.
#include <gtest/gtest.h>

#include "engine/decode/autoregressive.h"
#include "engine/decode/beam.h"
#include "engine/decode/bild.h"
#include "engine/decode/speculative.h"
#include "tests/engine/decode/methods_kit.h"

namespace tandem::test {
namespace {

// Decoders 0 (large) and 1 (small), each with its encoder: 2 and 3.
BoxOptions pair_with_encoders(uint64_t seed, int64_t pages) {
  BoxOptions o;
  o.models.resize(4);
  o.shuffle = seed;
  for (size_t m = 0; m < 4; ++m) {
    o.models[m].config = tiny_model(seed + m, 2, 8);
    o.models[m].pool = {4, pages, pages};
    o.models[m].device = static_cast<int>(m % 2);
  }
  return o;
}

SequenceSpec with_source(SequenceSpec s, std::vector<Token> source, bool small) {
  s.encoder_tokens = std::move(source);
  Cast cast{.roles = {{Role::kLarge, ModelId(0)}, encoder_role(ModelId(2))},
            .memories = {{.reader = 0, .encoder = 1}}};
  if (small) {
    cast.roles.push_back({Role::kSmall, ModelId(1)});
    cast.roles.push_back(encoder_role(ModelId(3)));
    cast.memories.push_back({.reader = 2, .encoder = 3});
  }
  s.cast = std::make_shared<const Cast>(std::move(cast));
  return s;
}

struct Asked {
  std::vector<Token> prompt, source;
};
std::vector<Asked> random_requests(uint64_t seed, int n) {
  Rng rng(seed);
  std::vector<Asked> all(static_cast<size_t>(n));
  for (Asked& a : all) a = {random_prompt(rng, 1, 6, 8), random_prompt(rng, 1, 12, 8)};
  return all;
}

// Their answers, all at once; adds up their evictions.
using Method = std::function<Task<void>(Gen)>;
std::vector<std::vector<Token>> answers(uint64_t seed, int64_t pages, const Method& method,
                                        bool small, int64_t* preemptions) {
  Box box{pair_with_encoders(seed, pages)};
  std::vector<std::shared_ptr<Recorder>> all;
  for (const Asked& a : random_requests(seed, 6)) {
    SequenceSpec s = with_source(box.spec(a.prompt, 12), a.source, small);
    s.method = method;
    all.push_back(box.submit(std::move(s)));
  }
  box.pump();
  std::vector<std::vector<Token>> tokens;
  for (const auto& r : all) {
    EXPECT_TRUE(r->ok()) << r->end.status;
    tokens.push_back(r->tokens);
    *preemptions += r->end.stats.preemptions;
  }
  box.expect_idle();
  return tokens;
}

TEST(Source, ExactMethodsGiveArsTokensWhateverIsEvicted) {
  SpeculativeParams chained;
  chained.draft_tokens = 3;
  BildParams exact;
  exact.fallback_threshold = 0.2F;
  exact.rollback_threshold = 0.69F;
  exact.max_small_run = 4;
  constexpr int64_t kAmple = 64, kTight = 7;
  int64_t none = 0, ar = 0, speculated = 0, bilded = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto expected = answers(seed, kAmple, autoregressive, false, &none);
    EXPECT_EQ(answers(seed, kTight, autoregressive, false, &ar), expected);
    const Method spec = [=](Gen g) { return speculative(g, chained); };
    EXPECT_EQ(answers(seed, kTight, spec, true, &speculated), expected);
    const Method little = [=](Gen g) { return bild(g, exact); };
    EXPECT_EQ(answers(seed, kTight, little, true, &bilded), expected);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_EQ(none, 0);
  EXPECT_GT(std::min({ar, speculated, bilded}), 20);
}

TEST(Source, BeamsReuseTheirSourceToo) {
  BeamParams beams;
  beams.width = 2;
  const Method search = [=](Gen g) { return beam(g, beams); };
  int64_t none = 0, some = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto expected = answers(seed, 64, search, false, &none);
    EXPECT_EQ(answers(seed, 14, search, false, &some), expected) << seed;
  }
  EXPECT_GT(some, 0);
}

TEST(Source, RowsAreSharedByThoseWithOneSourceOnly) {
  Box box{pair_with_encoders(1, 64)};
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6};
  const auto ask = [&](std::vector<Token> source) {
    const auto r = box.submit(with_source(box.spec(prompt, 6), std::move(source), false));
    box.pump();
    EXPECT_TRUE(r->ok()) << r->end.status;
    return r;
  };
  const auto first = ask({1, 2, 3}), other = ask({3, 2, 1}), again = ask({1, 2, 3});
  EXPECT_EQ(first->end.stats.cached_tokens, 0);
  EXPECT_EQ(other->end.stats.cached_tokens, 0);
  EXPECT_EQ(again->end.stats.cached_tokens, 5);
  EXPECT_EQ(again->tokens, first->tokens);
  EXPECT_NE(other->tokens, first->tokens) << "the source is seen";
}

TEST(Source, OneThatNoBatchHoldsIsRefused) {
  BoxOptions o = pair_with_encoders(1, 64);
  o.limits.step_rows = 8;
  Box box{o};
  const auto r = box.submit(with_source(box.spec({1}, 4), std::vector<Token>(9, 2), false));
  box.pump();
  EXPECT_EQ(r->end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(r->end.status.message().find("source tokens: 9; allowed: at most 8"),
            absl::string_view::npos)
      << r->end.status;
}

}  // namespace
}  // namespace tandem::test
