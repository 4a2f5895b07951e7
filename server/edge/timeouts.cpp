#include "server/edge/timeouts.h"

#include <vector>

#include "engine/base/check.h"
#include "engine/base/thread.h"

namespace tandem {

void Timeouts::Timeout::start(Timeouts* timeouts, Duration time, Expire expire) {
  TANDEM_CHECK(of_ == nullptr);
  of_ = timeouts;
  at_ = timeouts->clock_->now() + time;
  expire_ = std::move(expire);
  bool first = false;
  {
    const MutexLock lock(&timeouts->mutex_);
    const auto place = timeouts->pending_.emplace(at_, this).first;
    first = place == timeouts->pending_.begin();
  }
  if (first) timeouts->changed_.notify_one();
}

void Timeouts::Timeout::stop() {
  Timeouts* const of = std::exchange(of_, nullptr);
  if (of == nullptr) return;
  const MutexLock lock(&of->mutex_);
  of->pending_.erase({at_, this});
}

Timeouts::~Timeouts() {
  {
    const MutexLock lock(&mutex_);
    TANDEM_CHECK(pending_.empty());
    quit_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Timeouts::run_thread() {
  thread_ = start_thread("timeouts", [this] { run(); });
}

TimePoint Timeouts::run_expired() {
  std::vector<std::function<void()>> expired;
  TimePoint next = kNever;
  {
    const MutexLock lock(&mutex_);
    const TimePoint now = clock_->now();
    while (!pending_.empty() && pending_.begin()->first <= now) {
      expired.push_back(pending_.begin()->second->expire_());
      pending_.erase(pending_.begin());
    }
    if (!pending_.empty()) next = pending_.begin()->first;
  }
  for (const auto& function : expired) {
    if (function) function();
  }
  return next;
}

void Timeouts::run() {
  for (;;) {
    run_expired();
    MutexLock lock(&mutex_);
    if (quit_) return;
    const auto earlier = [this, due = pending_.empty() ? kNever : pending_.begin()->first]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                               return quit_ || (!pending_.empty() && pending_.begin()->first < due);
                             };
    if (pending_.empty()) {
      changed_.wait(lock, earlier);
    } else {
      changed_.wait_until(lock, pending_.begin()->first, earlier);
    }
  }
}

}  // namespace tandem
