#include "server/idle_unloader.h"

#include <utility>

#include "engine/base/thread.h"

namespace tandem {

IdleUnloader::IdleUnloader(std::function<TimePoint()> unload) : unload_(std::move(unload)) {
  thread_ = start_thread("idle deployments", [this] { run(); });
}

IdleUnloader::~IdleUnloader() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void IdleUnloader::poke() {
  const MutexLock lock(&mutex_);
  poked_ = true;
  changed_.notify_all();
}

void IdleUnloader::run() {
  MutexLock lock(&mutex_);
  while (!ending_) {
    poked_ = false;
    lock.unlock();
    const TimePoint next = unload_();
    lock.lock();
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return poked_ || ending_; };
    if (next == kNever) {
      changed_.wait(lock, ready);
    } else {
      changed_.wait_until(lock, next, ready);
    }
  }
}

}  // namespace tandem
