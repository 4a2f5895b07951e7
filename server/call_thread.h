// A thread with a gRPC completion queue of its own, on which streaming calls are served.
//
// gRPC's callbacks, which all other calls use, wake one of gRPC's threads for every write that is
// done. A step of the engine has a token for each of a thousand streams, and so many switches
// between threads would cost more than the writes. Here one thread starts all writes that are due,
// then takes what is done, and sleeps when neither is left.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {

class CallThread {
 public:
  // What an operation on queue() is named by: `then` is called when it is done, with `ok` as gRPC
  // means it for the operation. Outlives the operation.
  struct Completion {
    void (*then)(void* whom, bool ok);
    void* whom;
  };
  // Something to be done on the thread.
  class Work {
   public:
    virtual void work() = 0;

   protected:
    ~Work() = default;
  };

  // Works from start() on, which comes after the server's start.
  explicit CallThread(std::unique_ptr<grpc::ServerCompletionQueue> queue)
      : queue_(std::move(queue)) {}
  ~CallThread() { stop(); }
  void start();
  // Waits for every enter() to have its leave(), then for what is still on the queue. After the
  // server's Shutdown(). Does nothing the second time.
  void stop();

  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }

  // Calls `work->work()` soon, on the thread. REQUIRES: it is not waiting already, and lives until
  // then; a call has entered and does not leave before this returns. Thread-safe; never blocks.
  void post(Work* work);

  // A call that will start operations on queue() yet. Thread-safe.
  void enter();
  void leave();

 private:
  void run();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::mutex mutex_;
  std::vector<Work*> posted_;  // guarded by mutex_
  bool sleeping_ = false;      // guarded by mutex_: looks at posted_ only when it is woken
  bool woken_ = false;         // guarded by mutex_: the alarm is on its way
  int64_t calls_ = 0;          // guarded by mutex_
  std::condition_variable none_;
  grpc::Alarm alarm_;
  std::thread thread_;
};

}  // namespace tandem
