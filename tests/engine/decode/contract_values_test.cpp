// Hidden rows that a pass leaves as inputs of a later one: names, waiting, and their number.
#include "engine/decode/llm_to_slm.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using Answers = std::vector<Token>;

// LLM-to-SLM: the greedy answer of `small`, whose prompt rows are conditioned on hidden rows after
// layer `at` of the large model.
Answers conditioned_answer(const FakeModelConfig& small, int at, const std::vector<Token>& prompt,
                           int max_new_tokens) {
  std::vector<uint64_t> tokens, inputs;
  for (const Token t : prompt) {
    tokens.push_back(fake::token_input(t));
    inputs.push_back(fake::embed_input(AdapterId(0), fake::chain(tokens), at, t));
  }
  Answers answer;
  while (static_cast<int>(answer.size()) < max_new_tokens) {
    const std::vector<float> l = fake::logits_after_inputs(small, inputs, small.layers);
    answer.push_back(static_cast<Token>(std::ranges::max_element(l) - l.begin()));
    inputs.push_back(fake::token_input(answer.back()));
  }
  return answer;
}

// A large and a small model with `values` places for hidden rows each.
BoxOptions pair_with_values(int small_device, int64_t values) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2, 2);
  o.models[1].device = small_device;
  for (BoxModel& m : o.models) m.pool.values = values;
  return o;
}

SequenceSpec conditioned(Box& box, std::vector<Token> prompt, int max_new_tokens, int at = 3) {
  SequenceSpec s = box.spec(std::move(prompt), max_new_tokens);
  Cast& cast = edit_cast(s);
  cast.roles.push_back({Role::kSmall, ModelId(1)});
  cast.roles[0].prompt_only = true;
  cast.roles[1].adapter = AdapterId(0);
  cast.conditioning = {{.from = 0, .to = 1, .layer = at}};
  s.method = [](Gen g) { return llm_to_slm(g, {}); };
  return s;
}

TEST(ContractValues, APromptsRowsConditionAnotherModel) {
  for (const int device : {0, 1}) {
    for (const int chunk : {1, 3, 100}) {
      for (const int at : {1, 4}) {
        BoxOptions o = pair_with_values(device, 10);
        o.limits.prefill_chunk_rows = chunk;
        Box box{o};
        const std::vector<Token> prompt = {5, 6, 7, 8, 9, 10};
        const auto r = box.submit(conditioned(box, prompt, 7, at));
        box.pump();
        ASSERT_TRUE(r->ok()) << r->end.status;
        EXPECT_EQ(r->tokens, conditioned_answer(box.config(1), at, prompt, 7));
        EXPECT_EQ(r->end.stats.large_passes, 1);
        box.expect_idle();
      }
    }
  }
}

TEST(ContractValues, EvictionsChangeNothing) {
  int64_t preempted = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 rng(seed);
    BoxOptions o = pair_with_values(static_cast<int>(seed % 2), 10);
    for (BoxModel& m : o.models) m.pool.pages = m.pool.frontier_pages = 7;
    o.shuffle = seed;
    Box box{o};
    std::vector<std::shared_ptr<Recorder>> all;
    std::vector<Answers> expected;
    for (int i = 0; i < 4; ++i) {
      const std::vector<Token> prompt = random_prompt(rng, 1, 10);
      all.push_back(box.submit(conditioned(box, prompt, 12)));
      expected.push_back(conditioned_answer(box.config(1), 3, prompt, 12));
    }
    box.pump();
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(all[i]->ok()) << all[i]->end.status;
      EXPECT_EQ(all[i]->tokens, expected[i]);
      preempted += all[i]->end.stats.preemptions;
    }
    box.expect_idle();
  }
  EXPECT_GT(preempted, 20);
}

// There are places for one prompt's rows at a time, so others wait. A longer prompt is refused.
TEST(ContractValues, TheirNumberIsBounded) {
  Box box{pair_with_values(0, 8)};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(box.submit(conditioned(box, std::vector<Token>(7, 3 + i), 5)));
  }
  int64_t most = 0;
  while (box.tick()) most = std::max(most, box.pools(0).values.used());
  for (const auto& r : all) EXPECT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(most, 7);
  const auto refused = box.submit(conditioned(box, std::vector<Token>(9, 1), 5));
  box.pump();
  EXPECT_EQ(refused->end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused->admitted, 0);
  box.expect_idle();
}

// A pass that fails leaves no rows. The pass that needs them fails too; other requests do not.
TEST(ContractValues, AFailedPassLeavesNothing) {
  for (const int device : {0, 1}) {
    for (int n = 1; n < 8; ++n) {
      Box box{pair_with_values(device, 20)};
      int launched = 0;
      for (FakeBackend& b : box.backends) {
        b.set_faults([&](const Batch& batch) {
          if (++launched != n || batch.works.empty() || batch.works[0].request != 1) return Fault();
          return Fault{{}, {0}, {}};
        });
      }
      const auto a = box.submit(conditioned(box, {1, 2, 3}, 4));
      const auto b = box.submit(conditioned(box, {4, 5, 6}, 4));
      box.pump();
      EXPECT_EQ(a->ends, 1);
      EXPECT_TRUE(b->ok()) << b->end.status;
      box.expect_idle();
    }
  }
}

}  // namespace
}  // namespace tandem::test
