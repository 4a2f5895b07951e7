// A thread that runs jobs one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tandem {

class LaneThread {
 public:
  // `around` runs on the thread and calls its argument, the loop, once: set up, loop, tear down.
  explicit LaneThread(std::function<void(const std::function<void()>& loop)> around)
      : thread_([this, around = std::move(around)] { around([this] { loop(); }); }) {}

  // Runs what was posted before, then ends.
  ~LaneThread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_
  bool ending_ = false;                     // guarded by mutex_
  std::thread thread_;                      // last: starts when all else is there
};

}  // namespace tandem
