#include "tests/reference/beam.h"

#include <cmath>

#include "tests/engine/decode/methods_kit.h"
#include "tests/reference/autoregressive.h"

namespace tandem::test {
namespace {

using reference::Tokens;

void use_beams(SequenceSpec& s, BeamParams a) {
  s.width = a.width;
  s.method = [a](Gen g) { return beam(g, a); };
}

BoxOptions random_box(Rng& rng) {
  BoxOptions o;
  o.models[0].config = tiny_model(rng(), between(rng, 1, 4), between(rng, 2, 12));
  o.models[0].pool = {between(rng, 1, 6), 400, 0};
  o.shuffle = rng();
  o.limits.prefill_chunk_rows = between(rng, 1, 8);
  o.limits.step_rows = between(rng, 4, 30);
  return o;
}

BeamParams random_beams(Rng& rng) {
  BeamParams a;
  a.width = between(rng, 1, 5);
  a.length_penalty = chance(rng, 50) ? 1 : 2 * fraction(rng) - 0.3F;
  return a;
}

TEST(Beam, EqualsTheReference) {
  int not_greedy = 0, ended_by_eos = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    Box box{random_box(rng)};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 5; ++i) {
      SequenceSpec s = random_spec(box, rng, /*greedy=*/true);
      s.warp.temperature = chance(rng, 50) ? 0 : 2;  // does nothing
      s.warp.top_k = 1;
      const BeamParams a = random_beams(rng);
      const reference::Model model(box.config());
      Tokens eos = s.stops.eos;
      std::sort(eos.begin(), eos.end());
      const bool twice = std::unique(eos.begin(), eos.end()) != eos.end();
      if (twice) s.stops.eos.pop_back();
      Tokens expected = reference::beam(model, s.prompt, a, s.stops.eos, s.stops.max_new_tokens);
      not_greedy += expected != reference::autoregressive(box.config(), s.prompt, Warp(),
                                                          s.stops.eos, s.stops.max_new_tokens);
      use_beams(s, a);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [r, expected] : all) {
      ASSERT_TRUE(r->ok()) << seed << ": " << r->end.status;
      ASSERT_EQ(r->tokens, expected) << seed;
      ended_by_eos += r->end.reason == FinishReason::kEos;
    }
    box.expect_idle();
  }
  EXPECT_GT(not_greedy, 300);
  EXPECT_GT(ended_by_eos, 300);
}

TEST(Beam, OneBeamIsGreedyDecoding) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    Box box{random_box(rng)};
    SequenceSpec s = random_spec(box, rng, true);
    const Tokens expected = reference::autoregressive(box.config(), s.prompt, s.warp, s.stops.eos,
                                                      s.stops.max_new_tokens);
    use_beams(s, {1, 1});
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_EQ(r->tokens, expected) << seed;
  }
}

// More hypotheses than there are in all: the best of the whole tree.
TEST(Beam, AWideBeamFindsTheMostProbableText) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    BoxOptions o;
    o.models[0].config = tiny_model(seed, 2, 3);
    Box box{o};
    const Tokens prompt = {0, 1};
    const reference::Model model(box.config());
    std::map<double, Tokens> all;
    for (Token a = 0; a < 3; ++a) {
      for (Token b = 0; b < 3; ++b) {
        for (Token c = 0; c < 3; ++c) {
          const double sum =
              reference::Row(model, prompt).log_softmax(a) +
              reference::Row(model, reference::joined(prompt, {a})).log_softmax(b) +
              reference::Row(model, reference::joined(prompt, {a, b})).log_softmax(c);
          all[sum] = {a, b, c};
        }
      }
    }
    SequenceSpec s = box.spec(prompt, 3);
    s.logprobs = true;
    use_beams(s, {9, 0.6F});
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    EXPECT_EQ(r->tokens, all.rbegin()->second);
    double sum = 0;
    for (const Emitted& e : r->emitted) sum += double{e.logprob};
    EXPECT_NEAR(sum, all.rbegin()->first, 1e-5);
  }
}

// Caches that forked are filled again one by one.
TEST(Beam, EvictionsChangeNothing) {
  int64_t preempted = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    BoxOptions o = random_box(rng);
    o.models[0].pool = {4, 3 * 8, 0};  // 3 beams of 30 rows
    Box box{o};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 4; ++i) {
      SequenceSpec s = random_spec(box, rng, true);
      s.stops.eos.clear();
      s.stops.max_new_tokens = 20;
      const BeamParams a = {3, 1};
      Tokens expected = reference::beam(reference::Model(box.config()), s.prompt, a, {}, 20);
      use_beams(s, a);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [r, expected] : all) {
      ASSERT_TRUE(r->ok()) << seed << ": " << r->end.status;
      ASSERT_EQ(r->tokens, expected) << seed;
      preempted += r->end.stats.preemptions;
    }
    box.expect_idle();
  }
  EXPECT_GT(preempted, 100);
}

TEST(Beam, WhatCannotFitInAllBeamsIsRefused) {
  BoxOptions o;
  o.models[0].pool = {4, 23, 0};
  Box box{o};
  SequenceSpec s = box.spec({1, 2, 3, 4}, 28);
  use_beams(s, {3, 1});
  const auto refused = box.submit(std::move(s));
  SequenceSpec t = box.spec({1, 2, 3, 4}, 24);
  use_beams(t, {3, 1});
  const auto fits = box.submit(std::move(t));
  box.pump();
  EXPECT_EQ(refused->end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused->end.status.message().find("3 beams"), absl::string_view::npos)
      << refused->end.status;
  EXPECT_TRUE(fits->ok()) << fits->end.status;
}

// A hypothesis ends at a stop string as at an end token, and is cut there.
TEST(Beam, StopStrings) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    BoxOptions o;
    o.models[0].config = tiny_model(seed, 2, 4);
    Box box{o};
    SequenceSpec s = box.spec({1, 2}, 30);
    s.stops.text = std::make_unique<TokenStop>(Tokens{1, 3});
    use_beams(s, {4, 1});
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    const auto stop = Tokens{1, 3};
    const auto at = std::search(r->tokens.begin(), r->tokens.end(), stop.begin(), stop.end());
    if (r->end.reason == FinishReason::kStopSequence) {
      EXPECT_EQ(r->tokens.end() - at, 2);
    } else {
      EXPECT_EQ(at, r->tokens.end());
      EXPECT_EQ(r->tokens.size(), 30U);
    }
  }
}

TEST(Beam, ReportsTheBestTokensOfEachRow) {
  Box box{BoxOptions()};
  SequenceSpec s = box.spec({1, 2, 3}, 8);
  s.logprobs = true;
  s.top_logprobs = 20;  // more than it needs itself
  use_beams(s, {2, 1});
  const auto r = box.submit(std::move(s));
  box.pump();
  ASSERT_TRUE(r->ok());
  Tokens seq = {1, 2, 3};
  for (const Emitted& e : r->emitted) {
    const reference::Row row(reference::Model(box.config()), seq);
    ASSERT_EQ(e.top.size(), 20U);
    EXPECT_EQ(e.top[0].token, row.argmax);
    EXPECT_NEAR(e.logprob, row.log_softmax(e.token), 1e-4);
    seq.push_back(e.token);
  }
}

}  // namespace
}  // namespace tandem::test
