#include "server/call_thread.h"

#include <grpc/support/time.h>

namespace tandem {
namespace {

constexpr int kTakenATurn = 256;

}  // namespace

void CallThread::start() {
  thread_ = std::thread([this] { run(); });
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

void CallThread::post(Work* work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(work);
    if (!sleeping_ || woken_) return;
    woken_ = true;
  }
  alarm_.Set(queue_.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), &alarm_);
}

void CallThread::run() {
  const auto take = [this](void* tag, bool ok) {
    if (tag == &alarm_) {
      const std::lock_guard lock(mutex_);
      woken_ = false;
    } else {
      const auto* done = static_cast<const Completion*>(tag);
      done->then(done->whom, ok);
    }
  };
  std::vector<Work*> due;
  void* tag = nullptr;
  bool ok = false;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      due.swap(posted_);
      sleeping_ = due.empty();
    }
    if (due.empty()) {
      if (!queue_->Next(&tag, &ok)) return;
      {
        const std::lock_guard lock(mutex_);
        sleeping_ = false;
      }
      take(tag, ok);
    }
    for (Work* work : due) work->work();
    due.clear();
    // So many: what has been posted meanwhile has its turn too.
    for (int taken = 0;
         taken < kTakenATurn && queue_->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) ==
                                    grpc::CompletionQueue::GOT_EVENT;
         ++taken) {
      take(tag, ok);
    }
  }
}

}  // namespace tandem
