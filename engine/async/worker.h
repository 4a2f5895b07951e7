// Threads that do what is posted, so that others need not wait for it: a device's device queue,
// text, requests of the OpenAI door.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "engine/base/mutex.h"

namespace tandem {

using Job = absl::AnyInvocable<void()>;

// Jobs begin in the order in which they were posted; with one thread each ends before the next
// begins. A job must not throw. It is destroyed when it is done, on its thread.
class Worker {
 public:
  // Runs on each thread and calls its argument once, which does the jobs: set up, work, tear down.
  using Around = std::function<void(const std::function<void()>& work)>;

  explicit Worker(int threads = 1, const Around& around = {}) : alone_(threads == 1) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, around] {
        if (!around) return work();
        around([this] { work(); });
      });
    }
  }
  // Does what has been posted, also by those jobs, then ends.
  ~Worker() {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
    }
    filled_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Thread-safe, and a job may post; never waits for one.
  void post(Job job) {
    {
      const MutexLock lock(&mutex_);
      jobs_.push_back(std::move(job));
    }
    filled_.notify_one();
  }

 private:
  void work() {
    std::deque<Job> taken;
    MutexLock lock(&mutex_);
    for (;;) {
      filled_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ending_ || !jobs_.empty();
      });
      if (jobs_.empty()) return;
      if (alone_) {
        taken.swap(jobs_);  // nobody else would begin them sooner
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
  Mutex mutex_;
  CondVar filled_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace tandem
