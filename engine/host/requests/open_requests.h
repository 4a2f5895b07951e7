// The requests of a deployment that have not ended.
#pragma once

#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"

namespace tandem {

// Thread-safe.
class OpenRequests {
 public:
  void add(RequestId id) {
    const MutexLock lock(&mutex_);
    ids_.insert(id);
  }
  void remove(RequestId id) {
    const MutexLock lock(&mutex_);
    ids_.erase(id);
  }
  std::vector<RequestId> ids() const {
    const MutexLock lock(&mutex_);
    return {ids_.begin(), ids_.end()};
  }

 private:
  mutable Mutex mutex_;
  std::set<RequestId> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem
