// A thread that takes events from a queue, and does what is posted to it meanwhile. It sleeps in
// the queue, so whoever posts has to wake it there, with an event; and only once, and only where it
// sleeps, since that costs more than what is posted.
//
// Queue, of events of type Queue::Event:
//   bool wait(Event*)   the next event, when there is one; false: there will be none any more
//   bool poll(Event*)   the next event if there is one
//   void wake()         puts an event there; not called again before it has been taken
//   bool take(Event)    does what the event is for; false: it is the one of wake()
#pragma once

#include <vector>

#include "engine/base/mutex.h"

namespace tandem {

// Something to be done on the thread.
class PostedWork {
 public:
  virtual void work() = 0;

 protected:
  ~PostedWork() = default;
};

// `FallAsleepLate` plants a bug for the search to find.
template <class Queue, class M = Mutex, bool FallAsleepLate = false>
class WorkLoop {
 public:
  // `queue` outlives it.
  explicit WorkLoop(Queue* queue) : queue_(*queue) {}

  // REQUIRES: `work` is not waiting already, and lives until it is done. Thread-safe.
  void post(PostedWork* work) {
    {
      const MutexLock lock(&mutex_);
      posted_.push_back(work);
      if (!sleeping_ || woken_) return;
      woken_ = true;
    }
    queue_.wake();
  }

  // The thread's own: until wait() says that nothing comes any more.
  void run() {
    std::vector<PostedWork*> due;
    typename Queue::Event event{};
    for (;;) {
      {
        const MutexLock lock(&mutex_);
        due.swap(posted_);
        if (!FallAsleepLate) sleeping_ = due.empty();
      }
      if (due.empty()) {
        if (FallAsleepLate) set(&sleeping_, true);
        if (!queue_.wait(&event)) return;
        set(&sleeping_, false);
        take(event);
      }
      for (PostedWork* work : due) work->work();
      due.clear();
      // So many: what has been posted meanwhile has its turn too.
      for (int taken = 0; taken < kTakenATurn && queue_.poll(&event); ++taken) take(event);
    }
  }

 private:
  static constexpr int kTakenATurn = 256;

  template <class Event>
  void take(const Event& event) {
    if (!queue_.take(event)) set(&woken_, false);
  }
  void set(bool* flag, bool value) {
    const MutexLock lock(&mutex_);
    *flag = value;
  }

  Queue& queue_;
  M mutex_;
  std::vector<PostedWork*> posted_ ABSL_GUARDED_BY(mutex_);
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;  // looks at posted_ only when it is woken
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;     // an event of wake() is on its way
};

}  // namespace tandem
