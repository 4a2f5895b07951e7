// A bounded queue with its own threads, for work that is too long for gRPC's. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem {

class WorkQueue {
 public:
  WorkQueue(int threads, size_t max_waiting);
  ~WorkQueue();  // runs what waits, then joins

  // False, and nothing happens, when too much waits already.
  bool post(std::function<void()> work);

 private:
  void run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_
  bool stopping_ = false;                      // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace tandem
