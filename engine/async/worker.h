// Worker threads with a job queue: for devices, text, and requests of the OpenAI-compatible API.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace tandem {

using Job = absl::AnyInvocable<void()>;

// Jobs start in the order in which they were posted; with one thread, each ends before the next
// starts. A job must not throw. It is destroyed on its thread when it is done.
class Worker {
 public:
  // Runs on each thread for setup and teardown; calls its argument once, which runs the jobs.
  using Around = std::function<void(const std::function<void()>& work)>;

  explicit Worker(int threads = 1, const Around& around = {}) : alone_(threads == 1) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, around] {
        if (!around) return work();
        around([this] { work(); });
      });
    }
  }
  // Runs all posted jobs, and those that they post, then ends.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    filled_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Thread-safe, also from a job. Does not wait.
  void post(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    filled_.notify_one();
  }

 private:
  void work() {
    std::deque<Job> taken;
    std::unique_lock lock(mutex_);
    for (;;) {
      filled_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      if (alone_) {
        taken.swap(jobs_);  // no other thread could start them sooner
      } else {
        taken.push_back(std::move(jobs_.front()));
        jobs_.pop_front();
      }
      lock.unlock();
      for (; !taken.empty(); taken.pop_front()) taken.front()();
      lock.lock();
    }
  }

  const bool alone_;  // there is one thread
  std::mutex mutex_;  // guards jobs_ and ending_
  std::condition_variable filled_;
  std::deque<Job> jobs_;
  bool ending_ = false;
  std::vector<std::thread> threads_;  // last, as they use the other members
};

}  // namespace tandem
