#include "server/prefix_saver.h"

#include <utility>

#include "engine/base/thread.h"

namespace tandem {

PrefixSaver::PrefixSaver(std::function<void()> save, Duration interval)
    : save_(std::move(save)), interval_(interval) {
  thread_ = start_thread("saved prefixes", [this] { run(); });
}

void PrefixSaver::finish() {
  const MutexLock lock(&mutex_);
  finishing_ = true;
  changed_.notify_all();
}

void PrefixSaver::join() {
  finish();
  if (thread_.joinable()) thread_.join();
}

void PrefixSaver::run() {
  for (bool last = false; !last;) {
    {
      MutexLock lock(&mutex_);
      last = changed_.wait_for(
          lock, interval_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finishing_; });
    }
    save_();
  }
}

}  // namespace tandem
