// Worker threads with a job queue: for devices, text, and requests of the OpenAI-compatible API.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "engine/base/mutex.h"
#include "engine/base/thread.h"

namespace tandem {

using Job = absl::AnyInvocable<void()>;

// Jobs start in the order in which they were posted; with one thread, each ends before the next
// starts. A job must not throw. It is destroyed on its thread when it is done.
class Worker {
 public:
  // Runs on each thread for setup and teardown; calls its argument once, which runs the jobs.
  using Around = std::function<void(const std::function<void()>& work)>;

  // `what` names the threads in the error of a failed start (start_threads()).
  explicit Worker(int threads = 1, const Around& around = {}, const char* what = "queued work")
      : alone_(threads == 1) {
    const auto run = [this, around] {
      if (!around) return work();
      around([this] { work(); });
    };
    start_threads(what, threads, run, [this] { end(); }, &threads_);
  }
  // Runs all posted jobs, and those that they post, then ends.
  ~Worker() {
    end();
    for (std::thread& t : threads_) t.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Thread-safe, also from a job. Does not wait.
  void post(Job job) {
    {
      const MutexLock lock(&mutex_);
      jobs_.push_back(std::move(job));
    }
    filled_.notify_one();
  }

 private:
  void end() {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
    }
    filled_.notify_all();
  }

  void work() {
    std::deque<Job> taken;
    MutexLock lock(&mutex_);
    for (;;) {
      filled_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ending_ || !jobs_.empty();
      });
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
  Mutex mutex_;
  CondVar filled_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace tandem
