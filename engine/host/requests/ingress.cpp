#include "engine/host/requests/ingress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/sched/timers.h"

namespace tandem {
namespace {

absl::Status cancelled() { return absl::CancelledError("cancelled by the client"); }

}  // namespace

absl::Status shutting_down() {
  return with_reason(absl::UnavailableError("the server is shutting down"), "DRAINING");
}

// A byte of a prompt is a unit of service here: what it costs to tokenize.
Ingress::Ingress(int threads, const LimitsConfig& limits, const Clock* clock, Worker* answers,
                 Metrics* metrics)
    : limits_(limits),
      clock_(clock),
      answers_(answers),
      metrics_(metrics),
      ledger_({1, 1, limits.client_weights}) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Ingress::~Ingress() {
  {
    const std::lock_guard lock(mutex_);
    TANDEM_CHECK(places_.empty());
    quit_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

absl::Status Ingress::enter(Arrival arrival) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return shutting_down();
  expire_locked(clock_->now());
  const size_t here = places_.size() + at_work_.size();
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
  Line& line = lines_[waiter.account];
  if (line.empty()) turns_.add(waiter.account);
  const auto place = line.insert(line.end(), std::move(waiter));
  places_.emplace(place->arrival.id, place);
  ends_.emplace(place->until, place->arrival.id);
  count_locked();
  changed_.notify_one();
  return absl::OkStatus();
}

bool Ingress::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto waits = places_.find(id); waits != places_.end()) {
    answer_locked(waits->second, cancelled());
    return true;
  }
  const auto at_work = at_work_.find(id);
  if (at_work == at_work_.end()) return false;
  at_work->second = true;
  return true;
}

absl::Status Ingress::pass(RequestId id, absl::FunctionRef<void()> on) {
  const std::lock_guard lock(mutex_);
  const auto at_work = at_work_.find(id);
  if (at_work->second) return cancelled();
  if (stopping_) return shutting_down();
  on();
  at_work_.erase(at_work);
  return absl::OkStatus();
}

void Ingress::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  while (!places_.empty()) answer_locked(places_.begin()->second, shutting_down());
}

// Its line may be gone after it.
Ingress::Waiter Ingress::take_locked(Line::iterator place) {
  Waiter waiter = std::move(*place);
  Line& line = lines_[waiter.account];
  line.erase(place);
  if (line.empty()) {
    lines_.erase(waiter.account);
    turns_.remove(waiter.account);
  }
  places_.erase(waiter.arrival.id);
  ends_.erase({waiter.until, waiter.arrival.id});
  return waiter;
}

void Ingress::answer_locked(Line::iterator place, absl::Status status) {
  Waiter waiter = take_locked(place);
  ledger_.close(waiter.account, /*waiting=*/true);
  count_locked();
  answers_->post(
      [go = std::move(waiter.arrival.go), status = std::move(status)]() mutable { go(status); });
}

void Ingress::expire_locked(TimePoint now) {
  while (!ends_.empty() && ends_.begin()->first <= now) {
    const Line::iterator place = places_.at(ends_.begin()->second);
    answer_locked(place, out_of_time(*place));
  }
}

absl::Status Ingress::out_of_time(const Waiter& waiter) const {
  if (waiter.until == waiter.arrival.deadline) {
    return absl::DeadlineExceededError("the request's deadline passed before it was tokenized");
  }
  return with_reason(absl::ResourceExhaustedError(absl::StrCat(
                         "waited ", limits_.queue_seconds, " s to be tokenized; allowed: ",
                         limits_.queue_seconds, " s (limits.queue_seconds); try again later")),
                     "QUEUE_TIMEOUT");
}

void Ingress::count_locked() {
  metrics_->requests_tokenizing.set(static_cast<double>(places_.size() + at_work_.size()));
}

void Ingress::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return quit_ || !turns_.empty(); });
    if (quit_) return;
    expire_locked(clock_->now());
    if (turns_.empty()) continue;
    Waiter waiter = take_locked(lines_.at(turns_.first()).begin());
    ledger_.admit(waiter.account);
    ledger_.charge_prompt(waiter.account, waiter.arrival.bytes);
    const RequestId id = waiter.arrival.id;
    at_work_.emplace(id, false);
    lock.unlock();
    waiter.arrival.go(absl::OkStatus());
    waiter.arrival.go = nullptr;  // what it holds is freed without the lock
    lock.lock();
    at_work_.erase(id);  // unless it was handed on
    ledger_.close(waiter.account, /*waiting=*/false);
    count_locked();
  }
}

}  // namespace tandem
