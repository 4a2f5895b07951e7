// The loop of a thread that handles the events of a queue and work posted by other threads. The
// thread sleeps in the queue, so post() wakes it with an event: only if it sleeps, and only once,
// because an event costs more than the work.
//
// Queue, with events of type Queue::Event:
//   bool wait(Event*)     waits for the next event; false: the queue has ended
//   bool poll(Event*)     the next event, if there is one
//   void wake()           adds an event; not called again before that event is handled
//   bool handle(Event)    handles the event; false: it is the event of wake()
#pragma once

#include <vector>

#include "engine/base/mutex.h"

namespace tandem {

// A task for the thread.
class PostedWork {
 public:
  virtual void work() = 0;

 protected:
  ~PostedWork() = default;
};

// `FallAsleepLate` adds a bug that the search of the test must find.
template <class Queue, class M = Mutex, bool FallAsleepLate = false>
class WorkLoop {
 public:
  // `queue` outlives this.
  explicit WorkLoop(Queue* queue) : queue_(*queue) {}

  // REQUIRES: `work` is not queued, and lives until it has run. Thread-safe.
  void post(PostedWork* work) {
    {
      const MutexLock lock(&mutex_);
      posted_.push_back(work);
      if (!sleeping_ || woken_) return;
      woken_ = true;
    }
    queue_.wake();
  }

  // Runs on the thread until the queue ends.
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
        handle(event);
      }
      for (PostedWork* work : due) work->work();
      due.clear();
      // Bounded, so that work posted meanwhile runs too.
      for (int taken = 0; taken < kMaxEventsPerTurn && queue_.poll(&event); ++taken) handle(event);
    }
  }

 private:
  static constexpr int kMaxEventsPerTurn = 256;

  template <class Event>
  void handle(const Event& event) {
    if (!queue_.handle(event)) set(&woken_, false);
  }
  void set(bool* flag, bool value) {
    const MutexLock lock(&mutex_);
    *flag = value;
  }

  Queue& queue_;
  M mutex_;
  std::vector<PostedWork*> posted_ ABSL_GUARDED_BY(mutex_);
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;  // reads posted_ only after an event
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;     // the event of wake() is pending
};

}  // namespace tandem
