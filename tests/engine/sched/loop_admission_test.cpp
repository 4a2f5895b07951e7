// Order of admission, and refusals.
#include "engine/base/status.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

TEST(LoopAdmission, EveryQueueIsBounded) {
  BoxOptions o;
  o.limits.max_running = 1;
  o.limits.max_waiting = 4;
  o.limits.max_waiting_tokens = 50;
  o.limits.queue_seconds = 0.29;
  o.models[0].config.pass_seconds = 0.1;
  Box box{o};
  const auto running = box.submit(box.spec({1}, 50));
  box.loop->step();
  std::vector<std::shared_ptr<Recorder>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(box.submit(box.spec({1, 2}, 2)));
  const auto tokens = box.submit(box.spec(std::vector<Token>(47, 1), 2));
  for (int i = 0; i < 2; ++i) waiting.push_back(box.submit(box.spec({1, 2}, 2)));
  const auto number = box.submit(box.spec({1, 2}, 2));
  const auto large = box.submit(box.spec(std::vector<Token>(1000, 1), 25));
  box.loop->step();
  EXPECT_EQ(tokens->end.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(number->end.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(large->end.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(box.metrics.requests_waiting.value(), 4);
  EXPECT_EQ(box.metrics.series.front().requests_waiting.value(), 4);
  box.pump();
  EXPECT_EQ(box.metrics.series.front().requests_waiting.value(), 0);
  EXPECT_TRUE(running->ok());
  for (const auto& w : waiting) {  // none came to its turn in time
    EXPECT_EQ(w->end.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NEAR(w->end.stats.queue_seconds, 0.29, 1e-6);
  }
  const auto count = [&](RejectReason r) {
    return box.metrics.rejected[static_cast<size_t>(r)].value();
  };
  EXPECT_EQ(count(RejectReason::kQueueFull), 1);
  EXPECT_EQ(count(RejectReason::kQueueTokens), 1);
  EXPECT_EQ(count(RejectReason::kTooLarge), 1);
  EXPECT_EQ(count(RejectReason::kQueueTime), 4);
  box.expect_idle();
}

TEST(LoopAdmission, ByPriorityThenInOrder) {
  BoxOptions o;
  o.limits.max_running = 1;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  std::vector<RequestId> done;
  for (const int priority : {0, 0, 2, 1, 2, 0}) {
    SequenceSpec s = box.spec({1}, 2);
    s.priority = priority;
    all.push_back(box.submit(std::move(s)));
  }
  std::vector<size_t> order;
  box.pump_until([&] {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i]->ends && std::find(order.begin(), order.end(), i) == order.end()) {
        order.push_back(i);
      }
    }
    return order.size() == all.size();
  });
  EXPECT_EQ(order, (std::vector<size_t>{2, 4, 3, 0, 1, 5}));
}

// A request that waits for pages of one model blocks later requests for that model only.
TEST(LoopAdmission, AWaitForPagesBlocksOnlyItsPool) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].pool.pages = 8;  // of 4 rows
  Box box{o};
  const auto big = box.submit(box.spec(std::vector<Token>(24, 1), 4));
  ASSERT_TRUE(box.pump_until([&] { return !big->tokens.empty(); }));
  const auto head = box.submit(box.spec(std::vector<Token>(12, 2), 4));
  const auto behind = box.submit(box.spec({3}, 4));  // there would be room for it
  SequenceSpec elsewhere = box.spec({4}, 4);
  elsewhere.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  const auto other = box.submit(std::move(elsewhere));
  SequenceSpec in_both = box.spec({5}, 4);
  edit_cast(in_both).roles.push_back({Role::kSmall, ModelId(1), 0});
  const auto both = box.submit(std::move(in_both));
  box.loop->step();
  EXPECT_EQ(head->admitted, 0);
  EXPECT_EQ(behind->admitted, 0);
  EXPECT_EQ(both->admitted, 0);
  EXPECT_EQ(other->admitted, 1);
  box.pump();
  for (const auto& r : {big, head, behind, other, both}) EXPECT_TRUE(r->ok());
  box.expect_idle();
}

// Slots are common to all models: a request that needs several is not overtaken forever.
TEST(LoopAdmission, SlotsStayForRequestsThatNeedSeveral) {
  BoxOptions o;
  o.models.resize(2);
  o.limits.max_running = 4;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> first;
  for (int i = 0; i < 4; ++i) first.push_back(box.submit(box.spec({1}, 3 + 4 * i)));
  box.loop->step();
  const auto group = box.submit(box.spec({2}, 4), 4);
  SequenceSpec single = box.spec({3}, 4);
  single.cast = make_cast({{Role::kLarge, ModelId(1), 0}});
  const auto late = box.submit(std::move(single));
  ASSERT_TRUE(box.pump_until([&] { return late->admitted == 1; }));
  EXPECT_EQ(group[0]->admitted, 1);
  box.pump();
}

// Requests that can never fit are refused and do not block others.
TEST(LoopAdmission, WhatCanNeverFitIsRefused) {
  BoxOptions o;
  o.models.resize(2);
  o.models[0].pool = {4, 10, 5};  // 40 rows, 20 between layers
  o.models[1].pool = {4, 5, 5};   // 20 rows
  Box box{o};
  const auto with = [&](int prompt, int tokens, std::vector<CastRole> more, int extra) {
    SequenceSpec s = box.spec(std::vector<Token>(static_cast<size_t>(prompt), 1), tokens);
    auto& roles = edit_cast(s).roles;
    roles.insert(roles.end(), more.begin(), more.end());
    s.extra_rows = extra;
    const auto r = box.submit(std::move(s));
    box.pump();
    return r->end.status;
  };
  EXPECT_TRUE(with(30, 10, {}, 0).ok());
  EXPECT_TRUE(with(30, 6, {}, 4).ok());
  EXPECT_TRUE(with(10, 10, {{Role::kSmall, ModelId(1), 0}}, 0).ok());
  EXPECT_TRUE(with(10, 10, {{Role::kSmall, ModelId(0), 1}}, 0).ok());
  EXPECT_EQ(with(30, 11, {}, 0).message(),
            "prompt tokens + max_new_tokens: 30 + 11; allowed: at most 40 together, the KV memory "
            "of the model");
  EXPECT_EQ(with(30, 10, {}, 1).message(),
            "prompt tokens + max_new_tokens: 30 + 10 (and 1 rows for guesses); allowed: at most 40 "
            "together, the KV memory of the model");
  EXPECT_EQ(with(10, 11, {{Role::kSmall, ModelId(1), 0}}, 0).message(),
            "prompt tokens + max_new_tokens: 10 + 11; allowed: at most 20 together, the KV memory "
            "of the model");
  EXPECT_EQ(with(10, 11, {{Role::kSmall, ModelId(0), 1}}, 0).message(),
            "prompt tokens + max_new_tokens: 10 + 11; allowed: at most 20 together, the model's "
            "memory for rows between two layers");
  box.expect_idle();
}

TEST(LoopAdmission, ADeadlineEndsTheWaitAtItsVeryMoment) {
  BoxOptions o;
  o.limits.max_running = 1;
  o.models[0].config.pass_seconds = 7;
  Box box{o};
  const auto running = box.submit(box.spec({1}, 10));
  SequenceSpec s = box.spec({2}, 10);
  s.deadline = box.clock.now() + std::chrono::milliseconds(12345);
  const auto r = box.submit(std::move(s));
  ASSERT_TRUE(box.pump_until([&] { return r->ends == 1; }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(r->end.status));
  EXPECT_EQ(seconds(box.clock.now() - TimePoint{}), 12.345);
  EXPECT_EQ(r->end.stats.queue_seconds, 12.345);
}

// The retry delay is the queue's length over its recent rate.
TEST(LoopAdmission, ARefusalSaysWhenToTryAgain) {
  BoxOptions o;
  o.limits.max_running = 1;
  o.limits.max_waiting = 20;
  o.models[0].config.pass_seconds = 0.25;
  o.models[0].config.row_seconds = 0;
  Box box{o};
  std::vector<std::shared_ptr<Recorder>> all;
  for (int i = 0; i < 21; ++i) all.push_back(box.submit(box.spec({1}, 2)));  // half a second each
  ASSERT_TRUE(box.pump_until([&] { return all[10]->ends == 1; }));
  for (int i = 0; i < 13; ++i) all.push_back(box.submit(box.spec({1}, 2)));
  box.loop->step();
  const absl::Status refused = all.back()->end.status;
  ASSERT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.GetPayload(kRetryPayload), absl::Cord("10500"));  // 20 wait
  EXPECT_EQ(box.loop->retry_hint(), std::chrono::milliseconds(10500));
  box.pump();
}

}  // namespace
}  // namespace tandem::test
