#include "server/grpc/call_thread.h"

#include "engine/base/thread.h"

namespace tandem {

void CallThread::start() {
  thread_ = start_thread("gRPC calls", [this] { loop_.run(); });
}

void CallThread::stop() {
  {
    MutexLock lock(&mutex_);
    none_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_ == 0; });
  }
  if (!thread_.joinable()) return;
  queue_->Shutdown();
  thread_.join();
}

void CallThread::enter() {
  const MutexLock lock(&mutex_);
  ++calls_;
}

void CallThread::leave() {
  const MutexLock lock(&mutex_);
  if (--calls_ == 0) none_.notify_all();
}

}  // namespace tandem
