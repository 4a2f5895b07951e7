// A thread with a gRPC completion queue of its own, on which streaming calls are served.
//
// gRPC's callbacks, which all other calls use, wake one of gRPC's threads for every write that is
// done. A step of the engine has a token for each of a thousand streams, and so many switches
// between threads would cost more than the writes. Here one thread starts all writes that are due,
// then takes what is done, and sleeps when neither is left.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "engine/base/mutex.h"
#include "server/edge/work_loop.h"

namespace tandem {

class CallThread {
 public:
  // What an operation on queue() is named by: `then` is called when it is done, with `ok` as gRPC
  // means it for the operation. Outlives the operation.
  struct Completion {
    void (*then)(void* whom, bool ok);
    void* whom;
  };
  using Work = PostedWork;

  // Works from start() on, which comes after the server's start.
  explicit CallThread(std::unique_ptr<grpc::ServerCompletionQueue> queue)
      : queue_(std::move(queue)), events_{queue_.get(), {}}, loop_(&events_) {}
  ~CallThread() { stop(); }
  void start();
  // Waits for every enter() to have its leave(), then for what is still on the queue. After the
  // server's Shutdown(). Does nothing the second time.
  void stop();

  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }

  // Calls `work->work()` soon, on the thread. REQUIRES: it is not waiting already, and lives until
  // then; a call has entered and does not leave before this returns. Thread-safe; never blocks.
  void post(Work* work) { loop_.post(work); }

  // A call that will start operations on queue() yet. Thread-safe.
  void enter();
  void leave();

 private:
  // gRPC's queue, with an alarm to wake its thread.
  struct Events {
    struct Event {
      void* tag;
      bool ok;
    };
    bool wait(Event* event) { return queue->Next(&event->tag, &event->ok); }
    bool poll(Event* event) {
      return queue->AsyncNext(&event->tag, &event->ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) ==
             grpc::CompletionQueue::GOT_EVENT;
    }
    void wake() { alarm.Set(queue, gpr_time_0(GPR_CLOCK_MONOTONIC), &alarm); }
    bool take(const Event& event) {
      if (event.tag == &alarm) return false;
      const auto* done = static_cast<const Completion*>(event.tag);
      done->then(done->whom, event.ok);
      return true;
    }
    grpc::ServerCompletionQueue* const queue;
    grpc::Alarm alarm;
  };

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  Events events_;
  WorkLoop<Events> loop_;
  Mutex mutex_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar none_;
  std::thread thread_;
};

}  // namespace tandem
