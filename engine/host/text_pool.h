// Threads for work on text, so that neither RPC threads nor the loop ever tokenize.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace tandem {

using Job = absl::AnyInvocable<void()>;

// Thread-safe. What is queued when it is destroyed is still run.
class TextPool {
 public:
  explicit TextPool(int threads);
  ~TextPool();
  void post(Job job);

 private:
  void run();

  const bool alone_;  // there is one thread
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool stop_ = false;     // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace tandem
