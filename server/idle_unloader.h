// The thread that unloads idle deployments (Engine::unload_idle()).
#pragma once

#include <functional>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class IdleUnloader {
 public:
  // Calls `unload` on its thread: now, at the time that the last call returned, and after poke().
  explicit IdleUnloader(std::function<TimePoint()> unload);
  ~IdleUnloader();  // waits for a call that is under way
  IdleUnloader(const IdleUnloader&) = delete;
  IdleUnloader& operator=(const IdleUnloader&) = delete;

  // A deployment was added. Thread-safe.
  void poke();

 private:
  void run();

  const std::function<TimePoint()> unload_;
  Mutex mutex_;
  CondVar changed_;
  bool poked_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem
