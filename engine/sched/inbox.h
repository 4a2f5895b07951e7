// Messages to the loop from other threads: requests, stops, paused readers, finished batches,
// late answers, reads of the prefix index, changes of pools, and models that come and go.
//
// post() and quit() are thread-safe; take() and wait() are for the loop thread.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"
#include "engine/cache/prefix_index.h"
#include "engine/pass/backend.h"
#include "engine/sched/loop_model.h"
#include "engine/sched/page_read.h"
#include "engine/sched/pool_edit.h"
#include "engine/sched/spec.h"

namespace tandem {

struct PassFlight;

class Inbox {
 public:
  using Submit = std::vector<SequenceSpec>;  // a request's choices
  struct Stop {
    RequestId id;  // 0: all
    absl::Status status;
  };
  struct Pause {
    RequestId id;
    bool on;
  };
  struct BatchDone {
    DeviceId device;
    BatchResult result;
  };
  struct LateDone {
    PassFlight* flight;
    WorkResult result;
  };
  struct ListPrefixes {
    ModelId model;
    size_t most;
    std::function<void(std::vector<PrefixIndex::SharedPage>)> done;
  };
  struct ForgetLora {
    std::vector<ModelId> models;
    LoraId lora;
  };
  struct AddModels {
    std::vector<LoopModel> models;
    std::function<void()> done;
  };
  struct RemoveModels {
    std::vector<ModelId> models;
    std::function<void()> done;
  };
  using Message = std::variant<Submit, Stop, Pause, BatchDone, LateDone, ListPrefixes, ForgetLora,
                               PageRead, PoolEdit, AddModels, RemoveModels>;

  // Notifies under the lock: the loop may be destroyed once it has the message.
  void post(Message message) {
    const MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
    filled_.notify_one();
  }
  void quit() {
    const MutexLock lock(&mutex_);
    quit_ = true;
    filled_.notify_one();
  }

  // All messages, in order. `spare`, which is empty, gives its memory to the next ones.
  std::vector<Message> take(std::vector<Message> spare = {}) {
    const MutexLock lock(&mutex_);
    return std::exchange(messages_, std::move(spare));
  }
  // Sleeps until a message arrives or `clock` reaches `until`. False: quit() was called.
  bool wait(TimePoint until, const Clock& clock) {
    MutexLock lock(&mutex_);
    const auto filled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return quit_ || !messages_.empty();
    };
    if (until == kNever) {
      filled_.wait(lock, filled);
    } else if (const TimePoint now = clock.now(); now < until) {
      filled_.wait_for(lock, until - now, filled);
    }
    return !quit_;
  }

 private:
  Mutex mutex_;
  CondVar filled_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
  bool quit_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
