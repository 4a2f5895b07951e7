// A thread that does one thing after the other, so that others need not wait for them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tandem {

class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  // Does what has been posted, then ends.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    more_.notify_one();
    thread_.join();
  }

  // Thread-safe; never blocks.
  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(work));
    }
    more_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      more_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
      if (posted_.empty()) return;
      const std::function<void()> work = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable more_;
  std::deque<std::function<void()>> posted_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace tandem
