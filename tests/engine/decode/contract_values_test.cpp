// Hidden rows that a pass leaves and a later one is fed with: names, waiting, and their number.
#include "tests/engine/decode/sketches_values.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

using Answers = std::vector<Token>;

Token best(const FakeModelConfig& model, const std::vector<uint64_t>& inputs) {
  const std::vector<float> l = fake::logits_after_inputs(model, inputs, model.layers);
  return static_cast<Token>(std::ranges::max_element(l) - l.begin());
}

// Large and small, with room for so many hidden rows of each.
BoxOptions pair_with_values(int small_device, int64_t values) {
  BoxOptions o;
  o.models.resize(2);
  o.models[1].config = tiny_model(2, 2);
  o.models[1].device = small_device;
  for (BoxModel& m : o.models) m.pool.values = values;
  return o;
}

SequenceSpec embedding(Box& box, std::vector<Token> prompt, int max_new_tokens, int at = 3) {
  SequenceSpec s = box.spec(std::move(prompt), max_new_tokens);
  s.roles.push_back({Role::kSmall, ModelId(1), 0});
  s.method = [at](Gen g) { return embedded(g, at); };
  return s;
}

TEST(ContractValues, APromptsRowsFeedAnotherModel) {
  for (const int device : {0, 1}) {
    for (const int chunk : {1, 3, 100}) {
      for (const int at : {1, 4}) {
        BoxOptions o = pair_with_values(device, 10);
        o.limits.prefill_chunk_rows = chunk;
        Box box{o};
        const std::vector<Token> prompt = {5, 6, 7, 8, 9, 10};
        const auto r = box.submit(embedding(box, prompt, 7, at));
        box.pump();
        ASSERT_TRUE(r->ok()) << r->end.status;
        EXPECT_EQ(r->tokens, embedded_answer(box.config(1), at, prompt, {}, 7));
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
      all.push_back(box.submit(embedding(box, prompt, 12)));
      expected.push_back(embedded_answer(box.config(1), 3, prompt, {}, 12));
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

// Room for one prompt's rows at a time: others wait for it. More than there are can never be had.
TEST(ContractValues, TheirNumberIsBounded) {
  Box box{pair_with_values(0, 8)};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(box.submit(embedding(box, std::vector<Token>(7, 3 + i), 5)));
  }
  int64_t most = 0;
  while (box.tick()) most = std::max(most, box.pools(0).values.used());
  for (const auto& r : all) EXPECT_TRUE(r->ok()) << r->end.status;
  EXPECT_EQ(most, 7);
  const auto large = box.submit(embedding(box, std::vector<Token>(9, 1), 5));
  box.pump();
  EXPECT_EQ(large->end.status.code(), absl::StatusCode::kResourceExhausted);
  SequenceSpec known = embedding(box, std::vector<Token>(9, 1), 5);
  known.roles[0].hidden = 9;
  const auto refused = box.submit(std::move(known));
  box.pump();
  EXPECT_EQ(refused->end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused->admitted, 0);
  box.expect_idle();
}

// Every row that decodes is fed with the row of the other model's last token, and in its place.
Task<void> both_look(Gen g, int rounds) {
  const Stage L = g.stage(Role::kLarge), S = g.stage(Role::kSmall);
  for (int i = 0; i < rounds; ++i) {
    co_await g.round({{L, g.missing(L), 0, 1}, {S, g.missing(S)}});
    Pass p = g.catch_up(L);
    Read left;
    left.rows = last_rows(1, p.add.size());
    left.hidden = true;
    p.reading(std::move(left));
    const Ticket large = g.submit(std::move(p));
    Pass q;
    q.stage = S;
    q.add.chain(large.embedded(0, -1, true));
    q.reading(g.draw({0}));
    Readout r = co_await g.submit(std::move(q));
    if (g.emit(g.emitted(r.row[0]))) co_return;
  }
}

TEST(ContractValues, DecodedRowsAreFedToo) {
  for (const int device : {0, 1}) {
    Box box{pair_with_values(device, 2)};
    SequenceSpec s = box.spec({1}, 6);
    s.roles.push_back({Role::kSmall, ModelId(1), 0});
    s.method = [](Gen g) { return both_look(g, 100); };
    const auto r = box.submit(std::move(s));
    box.pump();
    ASSERT_TRUE(r->ok());
    std::vector<uint64_t> tokens, inputs;
    Token next = 1;
    for (const Token got : r->tokens) {
      tokens.push_back(fake::token_input(next));
      inputs.push_back(fake::embed_input(AdapterId(), fake::chain(tokens), 4, -1));
      next = best(box.config(1), inputs);
      EXPECT_EQ(got, next);
    }
    EXPECT_EQ(r->tokens.size(), 6U);
    box.expect_idle();
  }
}

// A pass that fails leaves nothing; what is behind it fails with it, and nobody else.
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
      const auto a = box.submit(embedding(box, {1, 2, 3}, 4));
      const auto b = box.submit(embedding(box, {4, 5, 6}, 4));
      box.pump();
      EXPECT_EQ(a->ends, 1);
      EXPECT_TRUE(b->ok()) << b->end.status;
      box.expect_idle();
    }
  }
}

}  // namespace
}  // namespace tandem::test
