#include "engine/decode/llm_to_slm.h"

#include "tests/engine/decode/method_checks.h"
#include "tests/reference/autoregressive.h"
#include "tests/reference/llm_to_slm.h"

namespace tandem::test {
namespace {

using reference::Fusion;
using reference::Tokens;

// Models that write and read differ in layers, device and what the small one is fed with.
BoxOptions random_boxes(Rng& rng, bool tight) {
  BoxOptions o = random_pair(rng, tight);
  for (BoxModel& m : o.models) m.pool.values = 20;
  if (tight) o.models[0].pool.frontier_pages = 5;
  return o;
}

Fusion random_fusion(Rng& rng, const Box& box) {
  Fusion f;
  f.adapter = chance(rng, 20) ? AdapterId() : AdapterId(between(rng, 0, 1));
  f.at = between(rng, 1, box.config(0).layers);
  f.replace = chance(rng, 50);
  f.foreign = f.replace && chance(rng, 50);
  return f;
}

// The large model runs no further than it is read.
std::vector<RoleModel> roles_of(const Fusion& f) {
  std::vector<RoleModel> roles = two_models();
  roles[0].to = f.at;
  roles[0].prompt_only = true;
  roles[1].adapter = f.adapter;
  roles[1].fed = {.role = 0, .at = f.at, .replace = f.replace, .foreign = f.foreign};
  return roles;
}

void use(SequenceSpec& s, const Fusion& f) {
  s.roles = roles_of(f);
  s.method = [](Gen g) { return llm_to_slm(g, {}); };
}

// Random requests, some at once, against the reference (METHODS F.8, F.9).
int64_t expect_equals_reference(uint64_t first_seed, int boxes, bool tight) {
  int64_t preempted = 0;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(boxes); ++seed) {
    Rng rng(seed);
    Box box{random_boxes(rng, tight)};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 8; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      const Fusion f = random_fusion(rng, box);
      if (chance(rng, 40)) {
        s.warp.processors =
            random_processors(rng, box.config().vocab_size, static_cast<int>(s.prompt.size()));
      }
      use(s, f);
      Tokens expected = reference::llm_to_slm(box.config(1), f, s.prompt, s.warp, s.stops.eos,
                                              s.stops.max_new_tokens);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [recorder, expected] : all) {
      EXPECT_TRUE(recorder->ok()) << seed << ": " << recorder->end.status;
      EXPECT_EQ(recorder->tokens, expected) << seed;
      const MethodStats& got = recorder->end.stats;
      preempted += got.preemptions;
      if (got.preemptions == 0) EXPECT_EQ(got.large_passes, 1) << seed;
      for (const Emitted& e : recorder->emitted) {
        EXPECT_EQ(e.provenance, (Provenance{Source::kSmall, Source::kSmall}));
      }
      if (testing::Test::HasFailure()) return 0;
    }
    box.expect_idle();
  }
  return preempted;
}

TEST(LlmToSlm, EqualsTheReference) { expect_equals_reference(0, 300, /*tight=*/false); }

TEST(LlmToSlm, EvictionsChangeNothing) {
  EXPECT_GT(expect_equals_reference(10000, 200, /*tight=*/true), 200);
}

// Once its rows are read, the large model's memory is others'.
TEST(LlmToSlm, TheLargeModelGivesItsPagesBack) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2, 2);
  o.models[0].pool.values = 20;
  Box box{o};
  SequenceSpec s = box.spec({1, 2, 3, 4, 5, 6, 7, 8, 9}, 20);
  use(s, {.at = 2});
  const auto r = box.submit(std::move(s));
  int after_first = 0;
  while (box.tick()) {
    if (r->tokens.size() < 2 || r->ends > 0) continue;
    ++after_first;
    EXPECT_EQ(box.pools(0).kv.used(), 0);
    EXPECT_EQ(box.pools(0).frontier.used(), 0);
    EXPECT_EQ(box.pools(0).values.used(), 0);
  }
  EXPECT_GT(after_first, 10);
  EXPECT_TRUE(r->ok());
}

// What cannot ever be read is refused, not waited for.
TEST(LlmToSlm, LongerPromptsThanItHasPlacesForAreRefused) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].pool.values = 8;
  Box box{o};
  for (const int n : {8, 9}) {
    SequenceSpec s = box.spec(Tokens(static_cast<size_t>(n), 3), 4);
    use(s, {.at = 4});
    const auto r = box.submit(std::move(s));
    box.pump();
    if (n == 8) {
      EXPECT_TRUE(r->ok()) << r->end.status;
    } else {
      EXPECT_EQ(r->end.status.code(), absl::StatusCode::kInvalidArgument);
    }
  }
  box.expect_idle();
}

// A small model that is told what the large one makes of the prompt drafts for it: the answer is
// the large one's, and each reads the prompt once.
TEST(LlmToSlm, ConditionedDraftsAreExact) {
  int64_t drafted = 0, preempted = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    Box box{random_boxes(rng, /*tight=*/seed % 3 == 0)};
    std::vector<std::pair<std::shared_ptr<Recorder>, Tokens>> all;
    for (int i = 0; i < 6; ++i) {
      SequenceSpec s = random_spec(box, rng, chance(rng, 50));
      const Fusion f = random_fusion(rng, box);
      s.roles = two_models();
      s.roles[1].adapter = f.adapter;
      s.roles[1].fed = {.role = 0, .at = f.at, .replace = f.replace, .foreign = false};
      const LlmToSlmParams a{.speculative = true, .draft_tokens = between(rng, 1, 5)};
      s.method = [a](Gen g) { return llm_to_slm(g, a); };
      Tokens expected = reference::autoregressive(box.config(0), s.prompt, s.warp, s.stops.eos,
                                                  s.stops.max_new_tokens);
      all.emplace_back(box.submit(std::move(s)), std::move(expected));
    }
    box.pump();
    for (const auto& [recorder, expected] : all) {
      ASSERT_TRUE(recorder->ok()) << seed << ": " << recorder->end.status;
      ASSERT_EQ(recorder->tokens, expected) << seed;
      drafted += recorder->end.stats.draft_tokens;
      preempted += recorder->end.stats.preemptions;
    }
    box.expect_idle();
  }
  EXPECT_GT(drafted, 1000);
  EXPECT_GT(preempted, 30);
}

}  // namespace
}  // namespace tandem::test
