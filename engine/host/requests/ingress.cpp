#include "engine/host/requests/ingress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/base/thread.h"
#include "engine/sched/timers.h"

namespace tandem {
absl::Status shutting_down() {
  return with_reason(absl::UnavailableError("the server is shutting down"), "DRAINING");
}

// The unit of service is a byte of a prompt.
Ingress::Ingress(int threads, const LimitsConfig& limits, const Clock* clock, Worker* answers,
                 Metrics* metrics)
    : limits_(limits),
      clock_(clock),
      answers_(answers),
      metrics_(metrics),
      ledger_({1, 1, limits.client_weights}) {
  start_threads("tokenization", threads, [this] { run(); }, [this] { quit(); }, &threads_);
}

Ingress::~Ingress() {
  {
    const MutexLock lock(&mutex_);
    TANDEM_CHECK(waiting_.empty());
  }
  quit();
  for (std::thread& t : threads_) t.join();
}

void Ingress::quit() {
  {
    const MutexLock lock(&mutex_);
    quit_ = true;
  }
  changed_.notify_all();
}

absl::Status Ingress::enter(Arrival arrival) {
  const MutexLock lock(&mutex_);
  if (stopping_) return shutting_down();
  expire_locked(clock_->now());
  const size_t here = waiting_.size() + started_.size();
  if (here >= static_cast<size_t>(limits_.max_waiting)) {
    return with_reason(absl::ResourceExhaustedError(absl::StrCat(
                           "queue is full: ", here, " requests are being tokenized; allowed: ",
                           limits_.max_waiting, " (limits.max_waiting); try again later")),
                       "QUEUE_FULL");
  }
  Waiter waiter;
  waiter.account = ledger_.open(arrival.client);
  waiter.until = std::min(arrival.deadline, arrival.submitted + duration(limits_.queue_seconds));
  waiter.arrival = std::move(arrival);
  Queue entering;
  const auto place = entering.insert(entering.end(), std::move(waiter));
  waiting_.emplace(place->arrival.id, place);
  expiries_.emplace(place->until, place->arrival.id);
  if (place->arrival.held.empty()) {
    queue_locked(&entering, place);
    changed_.notify_one();
  } else {
    Queue& held = held_[place->arrival.held];
    held.splice(held.end(), entering);
    changed_.notify_all();  // a thread that is not busy waits for its expiry
  }
  count_locked();
  return absl::OkStatus();
}

void Ingress::queue_locked(Queue* from, Queue::iterator place) {
  Queue& queue = queues_[place->account];
  if (queue.empty()) turns_.add(place->account);
  queue.splice(queue.end(), *from, place);
}

void Ingress::release(const std::string& held) {
  const MutexLock lock(&mutex_);
  const auto found = held_.find(held);
  if (found == held_.end()) return;
  Queue released = std::move(found->second);
  held_.erase(found);
  while (!released.empty()) {
    released.front().arrival.held.clear();
    queue_locked(&released, released.begin());
  }
  changed_.notify_all();
}

void Ingress::fail(const std::string& held, const absl::Status& status) {
  const MutexLock lock(&mutex_);
  while (held_.contains(held)) answer_locked(held_.at(held).begin(), status);
}

bool Ingress::cancel(RequestId id, const absl::Status& status) {
  const MutexLock lock(&mutex_);
  if (const auto waiter = waiting_.find(id); waiter != waiting_.end()) {
    answer_locked(waiter->second, status);
    return true;
  }
  const auto started = started_.find(id);
  if (started == started_.end()) return false;
  started->second.Update(status);
  return true;
}

absl::Status Ingress::hand_over(RequestId id, absl::FunctionRef<void()> submit) {
  const MutexLock lock(&mutex_);
  const auto started = started_.find(id);
  if (!started->second.ok()) return started->second;
  if (stopping_) return shutting_down();
  submit();
  started_.erase(started);
  return absl::OkStatus();
}

void Ingress::stop() {
  const MutexLock lock(&mutex_);
  stopping_ = true;
  while (!waiting_.empty()) answer_locked(waiting_.begin()->second, shutting_down());
}

// May erase the queue.
Ingress::Waiter Ingress::take_locked(Queue::iterator place) {
  Waiter waiter = std::move(*place);
  if (!waiter.arrival.held.empty()) {
    const auto held = held_.find(waiter.arrival.held);
    held->second.erase(place);
    if (held->second.empty()) held_.erase(held);
  } else {
    Queue& queue = queues_[waiter.account];
    queue.erase(place);
    if (queue.empty()) {
      queues_.erase(waiter.account);
      turns_.remove(waiter.account);
    }
  }
  waiting_.erase(waiter.arrival.id);
  expiries_.erase({waiter.until, waiter.arrival.id});
  return waiter;
}

void Ingress::answer_locked(Queue::iterator place, absl::Status status) {
  Waiter waiter = take_locked(place);
  ledger_.close(waiter.account, /*waiting=*/true);
  count_locked();
  answers_->post([start = std::move(waiter.arrival.start), status = std::move(status)]() mutable {
    start(status);
  });
}

void Ingress::expire_locked(TimePoint now) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const Queue::iterator place = waiting_.at(expiries_.begin()->second);
    answer_locked(place, out_of_time(*place));
  }
}

absl::Status Ingress::out_of_time(const Waiter& waiter) const {
  const char* const missed =
      waiter.arrival.held.empty() ? "tokenized" : "started: its model is being loaded";
  if (waiter.until == waiter.arrival.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("the request's deadline passed before it was ", missed));
  }
  return with_reason(
      absl::ResourceExhaustedError(absl::StrCat("waited ", limits_.queue_seconds, " s to be ",
                                                missed, "; allowed: ", limits_.queue_seconds,
                                                " s (limits.queue_seconds); try again later")),
      "QUEUE_TIMEOUT");
}

void Ingress::count_locked() {
  metrics_->requests_tokenizing.set(static_cast<double>(waiting_.size() + started_.size()));
}

void Ingress::run() {
  MutexLock lock(&mutex_);
  for (;;) {
    const TimePoint until = next_expiry_locked();
    const auto ready = [this, until]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return quit_ || !turns_.empty() || next_expiry_locked() < until;
    };
    if (until == kNever) {
      changed_.wait(lock, ready);
    } else if (const TimePoint now = clock_->now(); now < until) {
      changed_.wait_for(lock, until - now, ready);
    }
    if (quit_) return;
    expire_locked(clock_->now());
    if (turns_.empty()) continue;
    Waiter waiter = take_locked(queues_.at(turns_.first()).begin());
    ledger_.admit(waiter.account);
    ledger_.charge_prompt(waiter.account, waiter.arrival.bytes);
    const RequestId id = waiter.arrival.id;
    started_.emplace(id, absl::OkStatus());
    lock.unlock();
    waiter.arrival.start(absl::OkStatus());
    waiter.arrival.start = nullptr;  // frees its captures without the lock
    lock.lock();
    started_.erase(id);  // unless it was handed over
    ledger_.close(waiter.account, /*waiting=*/false);
    count_locked();
  }
}

}  // namespace tandem
