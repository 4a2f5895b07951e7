#include "engine/backend/fake/timer.h"

#include <utility>

#include "engine/base/thread.h"

namespace tandem {

ThreadTimer::ThreadTimer() : thread_(start_thread("a fake device", [this] { run(); })) {}

ThreadTimer::~ThreadTimer() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ThreadTimer::at(TimePoint when, std::function<void()> f) {
  {
    const MutexLock lock(&mutex_);
    due_.emplace(when, std::move(f));
  }
  changed_.notify_one();
}

void ThreadTimer::run() {
  MutexLock lock(&mutex_);
  for (;;) {
    if (due_.empty()) {
      if (stop_) return;
      changed_.wait(lock);
      continue;
    }
    const TimePoint when = due_.begin()->first;
    if (!stop_ && std::chrono::steady_clock::now() < when) {
      changed_.wait_until(lock, when);
      continue;
    }
    std::function<void()> f = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    lock.unlock();
    f();
    lock.lock();
  }
}

bool VirtualTimer::fire_next() {
  if (due_.empty()) return false;
  clock_->advance_to(due_.begin()->first);
  const std::function<void()> f = std::move(due_.begin()->second);
  due_.erase(due_.begin());
  f();
  return true;
}

}  // namespace tandem
