#include "engine/host/requests/ingress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Log = std::vector<std::string>;

// An ingress of one thread, which the first arrival holds until open().
class Held {
 public:
  explicit Held(LimitsConfig limits = {})
      : answers_(std::make_unique<Worker>(1)),
        ingress_(std::make_unique<Ingress>(1, limits, &clock_, answers_.get(), &metrics_)) {
    std::promise<void> began;
    Ingress::Arrival first = arrival("holder");
    holder_ = first.id;
    first.start = [this, &began, opened = hold_.get_future().share(),
                   ingress = ingress_.get()](const absl::Status&) {
      began.set_value();
      opened.wait();
      passed_ = ingress->hand_over(holder_, [] {});
    };
    EXPECT_TRUE(ingress_->enter(std::move(first)).ok());
    began.get_future().wait();
  }
  ~Held() {
    if (ingress_ != nullptr) open();  // before what the holder still uses is gone
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Records "NAME CODE".
  Ingress::Arrival arrival(const std::string& client, int64_t bytes = 1) {
    clients_.insert(client);
    Ingress::Arrival a;
    a.id = ++last_id_;
    a.client = client;
    a.bytes = bytes;
    a.submitted = clock_.now();
    a.start = [this, client](const absl::Status& status) {
      const std::lock_guard lock(mutex_);
      log_.push_back(client + " " + absl::StatusCodeToString(status.code()));
      last_ = status;
    };
    return a;
  }
  absl::Status enter(const std::string& client, int64_t bytes = 1) {
    return ingress_->enter(arrival(client, bytes));
  }

  // Requests that were answered without being started.
  Log answered() {
    std::promise<void> done;  // the pool has one thread: behind all that is posted
    answers_->post([&done] { done.set_value(); });
    done.get_future().wait();
    const std::lock_guard lock(mutex_);
    return log_;
  }
  Log open() {
    hold_.set_value();
    // After all other requests of its client.
    std::deque<std::promise<void>> served;
    for (const std::string& client : std::set<std::string>(clients_)) {
      Ingress::Arrival last = arrival(client);
      std::promise<void>& done = served.emplace_back();
      last.start = [&done](const absl::Status&) { done.set_value(); };
      if (!ingress_->enter(std::move(last)).ok()) served.pop_back();
    }
    for (std::promise<void>& done : served) done.get_future().wait();
    ingress_.reset();
    return answered();
  }

  VirtualClock clock_;
  Metrics metrics_;
  std::unique_ptr<Worker> answers_;
  std::unique_ptr<Ingress> ingress_;
  RequestId holder_ = 0;
  RequestId last_id_ = 0;
  absl::Status last_;    // what `start` of the last one got
  absl::Status passed_;  // what hand_over() returned to the holder

 private:
  std::promise<void> hold_;
  std::mutex mutex_;
  Log log_;
  std::set<std::string> clients_;
};

TEST(Ingress, ClientsTakeTurnsByBytes) {
  Held held;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(held.enter("fat", 1000).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(held.enter("lean", 10).ok());
  EXPECT_EQ(held.metrics_.requests_tokenizing.value(), 7);
  EXPECT_THAT(held.open(),
              ElementsAre("fat OK", "lean OK", "lean OK", "lean OK", "fat OK", "fat OK"));
  EXPECT_EQ(held.metrics_.requests_tokenizing.value(), 0);
}

TEST(Ingress, RefusedRequestsAreDropped) {
  LimitsConfig limits;
  limits.max_waiting = 2;
  Held held(limits);
  EXPECT_TRUE(held.enter("a").ok());
  const auto prompt = std::make_shared<int>();
  Ingress::Arrival third = held.arrival("b");
  third.start = [prompt](const absl::Status&) {};
  const absl::Status status = held.ingress_->enter(std::move(third));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("2 requests are being tokenized; allowed: 2"));
  EXPECT_EQ(prompt.use_count(), 1);
  EXPECT_TRUE(held.ingress_->cancel(2, absl::CancelledError("")));  // makes room for the last one
  held.ingress_->cancel(held.holder_, absl::CancelledError(""));
}

TEST(Ingress, TheCancelledIsAnsweredWithoutATurn) {
  Held held;
  EXPECT_TRUE(held.enter("a").ok());
  EXPECT_TRUE(held.ingress_->cancel(held.last_id_, absl::CancelledError("")));
  EXPECT_THAT(held.answered(), ElementsAre("a CANCELLED"));
  EXPECT_FALSE(held.ingress_->cancel(held.last_id_, absl::CancelledError("")));
  EXPECT_TRUE(held.ingress_->cancel(held.holder_, absl::CancelledError("")));
  held.open();
  EXPECT_EQ(held.passed_.code(), absl::StatusCode::kCancelled);
}

TEST(Ingress, DeadlinesAndTheLongestWaitEndWithoutATurn) {
  LimitsConfig limits;
  limits.queue_seconds = 2;
  Held held(limits);
  Ingress::Arrival hurried = held.arrival("hurried");
  hurried.deadline = held.clock_.now() + std::chrono::seconds(1);
  EXPECT_TRUE(held.ingress_->enter(std::move(hurried)).ok());
  EXPECT_TRUE(held.enter("patient").ok());
  held.clock_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(held.enter("next").ok());
  EXPECT_THAT(held.answered(), ElementsAre("hurried DEADLINE_EXCEEDED"));
  held.clock_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(held.enter("next").ok());
  EXPECT_THAT(held.answered(),
              ElementsAre("hurried DEADLINE_EXCEEDED", "patient RESOURCE_EXHAUSTED"));
  EXPECT_THAT(held.last_.message(), HasSubstr("allowed: 2 s (limits.queue_seconds)"));
  EXPECT_THAT(held.open(), ElementsAre("hurried DEADLINE_EXCEEDED", "patient RESOURCE_EXHAUSTED",
                                       "next OK", "next OK"));
}

TEST(Ingress, StoppingEndsWaitingAndStartedRequests) {
  Held held;
  EXPECT_TRUE(held.enter("a").ok());
  EXPECT_TRUE(held.enter("b").ok());
  held.ingress_->stop();
  EXPECT_EQ(held.answered().size(), 2U);
  EXPECT_EQ(held.last_.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(held.enter("c").code(), absl::StatusCode::kUnavailable);
  held.open();
  EXPECT_EQ(held.passed_.code(), absl::StatusCode::kUnavailable);
}

// `on` is what the request waits for.
Ingress::Arrival waiting_for(Held& held, const std::string& client, const std::string& on) {
  Ingress::Arrival a = held.arrival(client);
  a.held = on;
  return a;
}

TEST(Ingress, HeldRequestsTakeTurnsWhenTheyAreReleased) {
  Held held;
  EXPECT_TRUE(held.ingress_->enter(waiting_for(held, "a", "m")).ok());
  EXPECT_TRUE(held.ingress_->enter(waiting_for(held, "b", "n")).ok());
  EXPECT_TRUE(held.ingress_->enter(waiting_for(held, "c", "m")).ok());
  EXPECT_TRUE(held.enter("d").ok());
  EXPECT_EQ(held.metrics_.requests_tokenizing.value(), 5);
  held.ingress_->release("m");
  held.ingress_->release("m");
  EXPECT_TRUE(held.answered().empty());
  held.ingress_->fail("n", absl::UnavailableError(""));
  held.ingress_->fail("m", absl::UnavailableError(""));
  EXPECT_THAT(held.answered(), ElementsAre("b UNAVAILABLE"));
  EXPECT_THAT(held.open(), ElementsAre("b UNAVAILABLE", "a OK", "c OK", "d OK"));
  EXPECT_EQ(held.metrics_.requests_tokenizing.value(), 0);
}

TEST(Ingress, HeldRequestsAreCancelledExpireAndCount) {
  LimitsConfig limits;
  limits.max_waiting = 4;
  limits.queue_seconds = 2;
  Held held(limits);
  EXPECT_TRUE(held.ingress_->enter(waiting_for(held, "a", "m")).ok());
  EXPECT_TRUE(held.ingress_->cancel(held.last_id_, absl::CancelledError("")));
  EXPECT_TRUE(held.ingress_->enter(waiting_for(held, "b", "m")).ok());
  Ingress::Arrival hurried = waiting_for(held, "c", "m");
  hurried.deadline = held.clock_.now() + std::chrono::seconds(1);
  EXPECT_TRUE(held.ingress_->enter(std::move(hurried)).ok());
  EXPECT_TRUE(held.enter("d").ok());
  EXPECT_EQ(held.enter("e").code(), absl::StatusCode::kResourceExhausted);
  held.clock_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(held.enter("d").ok());
  EXPECT_THAT(held.answered(), ElementsAre("a CANCELLED", "c DEADLINE_EXCEEDED"));
  held.clock_.advance(std::chrono::seconds(1));
  EXPECT_TRUE(held.ingress_->enter(waiting_for(held, "f", "m")).ok());
  EXPECT_THAT(held.answered(), ElementsAre("a CANCELLED", "c DEADLINE_EXCEEDED",
                                           "b RESOURCE_EXHAUSTED", "d RESOURCE_EXHAUSTED"));
  held.ingress_->stop();
  EXPECT_THAT(held.answered().back(), HasSubstr("UNAVAILABLE"));
}

// No other request comes that would make a thread look at the time.
TEST(Ingress, AHeldRequestExpiresByItself) {
  SteadyClock clock;
  Metrics metrics;
  Worker answers(1);
  Ingress ingress(1, {}, &clock, &answers, &metrics);
  std::promise<absl::Status> ended;
  Ingress::Arrival a;
  a.id = 1;
  a.held = "m";
  a.submitted = clock.now();
  a.deadline = clock.now() + std::chrono::milliseconds(1);
  a.start = [&](const absl::Status& status) { ended.set_value(status); };
  EXPECT_TRUE(ingress.enter(std::move(a)).ok());
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace tandem
