// Who is let in, in which order, and who is refused.
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
  box.pump();
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

}  // namespace
}  // namespace tandem::test
