// The thread that saves shared prefixes (engine/host/prefixes): at intervals, and before the server
// stops.
#pragma once

#include <functional>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class PrefixSaver {
 public:
  // Calls `save` on its thread.
  PrefixSaver(std::function<void()> save, Duration interval);
  ~PrefixSaver() { join(); }
  PrefixSaver(const PrefixSaver&) = delete;
  PrefixSaver& operator=(const PrefixSaver&) = delete;

  // One more call, now; then none. Does not wait for it.
  void finish();
  // Waits for the last call. Calls finish() if it was not called.
  void join();

 private:
  void run();

  const std::function<void()> save_;
  const Duration interval_;
  Mutex mutex_;
  CondVar changed_;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem
