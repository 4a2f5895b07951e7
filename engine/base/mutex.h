// std::mutex and std::condition_variable with annotations for Clang's -Wthread-safety, which then
// checks at compile time that guarded members are accessed under their mutex.
//
//   Mutex mutex_;
//   CondVar changed_;
//   std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
//
//   MutexLock lock(&mutex_);
//   changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !queue_.empty();
//   });
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace tandem {

class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for a scope, and may release it in between. `M`: Mutex, or a stand-in in tests.
template <class M = Mutex>
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(M* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(*mutex) {
    mutex_.lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() ABSL_UNLOCK_FUNCTION() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_.lock();
    held_ = true;
  }

 private:
  friend class CondVar;
  M& mutex_;
  bool held_ = true;
};

// The predicates are called under the lock. REQUIRES: `lock` holds its mutex.
class CondVar {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  void wait(MutexLock<Mutex>& lock) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(lock);
    condition_.wait(adopted.lock);
  }
  template <class Predicate>
  void wait(MutexLock<Mutex>& lock, Predicate done) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(lock);
    condition_.wait(adopted.lock, done);
  }
  // False: the time is over, and `done` is still false.
  template <class Rep, class Period, class Predicate>
  bool wait_for(MutexLock<Mutex>& lock, std::chrono::duration<Rep, Period> limit,
                Predicate done) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(lock);
    return condition_.wait_for(adopted.lock, limit, done);
  }
  template <class Clock, class Duration>
  void wait_until(MutexLock<Mutex>& lock, std::chrono::time_point<Clock, Duration> deadline)
      ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(lock);
    condition_.wait_until(adopted.lock, deadline);
  }
  template <class Clock, class Duration, class Predicate>
  bool wait_until(MutexLock<Mutex>& lock, std::chrono::time_point<Clock, Duration> deadline,
                  Predicate done) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(lock);
    return condition_.wait_until(adopted.lock, deadline, done);
  }

 private:
  // Lends the mutex to std::condition_variable for one wait.
  struct Adopted {
    explicit Adopted(MutexLock<Mutex>& from) : lock(from.mutex_.mutex_, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable condition_;
};

}  // namespace tandem
