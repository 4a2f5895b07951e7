// A thread with its own gRPC completion queue, which serves streaming calls.
//
// gRPC's callbacks, which serve all other calls, wake a thread for every completed write. One step
// of the engine yields a token for each of a thousand streams, and that many thread switches would
// cost more than the writes. This thread starts all due writes, handles completions, and then
// sleeps.
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
  // The tag of an operation on queue(): `then` is called when it completes, with gRPC's `ok`.
  // Outlives the operation.
  struct Completion {
    void (*then)(void* whom, bool ok);
    void* whom;
  };
  using Work = PostedWork;

  // The thread runs from start() on. REQUIRES: the server has started.
  explicit CallThread(std::unique_ptr<grpc::ServerCompletionQueue> queue)
      : queue_(std::move(queue)), events_{queue_.get(), {}}, loop_(&events_) {}
  ~CallThread() { stop(); }
  void start();
  // Waits until every enter() has its leave() and the queue is empty. REQUIRES: the server has been
  // shut down. Does nothing the second time.
  void stop();

  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }

  // Calls `work->work()` soon on the thread. REQUIRES: `work` is not queued, and lives until then;
  // a call has entered and does not leave before this returns. Thread-safe; does not block.
  void post(Work* work) { loop_.post(work); }

  // Registers a call that will start operations on queue(). Thread-safe.
  void enter();
  void leave();

 private:
  // gRPC's queue, with an alarm that wakes its thread.
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
    bool handle(const Event& event) {
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
