#include "server/grpc/call_thread.h"

namespace tandem {

void CallThread::start() {
  thread_ = std::thread([this] { loop_.run(); });
}

void CallThread::stop() {
  {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return calls_ == 0; });
  }
  if (!thread_.joinable()) return;
  queue_->Shutdown();
  thread_.join();
}

void CallThread::enter() {
  const std::lock_guard lock(mutex_);
  ++calls_;
}

void CallThread::leave() {
  const std::lock_guard lock(mutex_);
  if (--calls_ == 0) none_.notify_all();
}

}  // namespace tandem
