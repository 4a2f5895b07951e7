// An asynchronous log writer: callers enqueue lines, a thread writes them. If the log is not read
// (a full pipe, a stopped collector), lines are dropped and counted.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "server/edge/socket.h"

namespace tandem {

class LogQueue {
 public:
  // Writes to `fd`, which it does not own, and queues at most `max_bytes`. `note` makes the line
  // that reports dropped lines once writing resumes.
  LogQueue(int fd, size_t max_bytes, std::function<std::string(int64_t dropped)> note);
  // Writes what can be written without waiting.
  ~LogQueue();

  // `line` without its newline. Never blocks.
  void write(std::string line);

  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }  // since the start

  // Waits until all lines are written, at most `limit`. False if lines are left.
  bool flush(Duration limit);

 private:
  void run();
  bool write_out(const std::string& line);
  bool writable();

  const int fd_;
  const size_t max_bytes_;
  const std::function<std::string(int64_t)> note_;
  WakeUp stop_;
  std::atomic<int64_t> dropped_{0};

  Mutex mutex_;
  CondVar more_, less_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of lines_
  int64_t reported_ ABSL_GUARDED_BY(mutex_) = 0;  // dropped lines that notes have reported
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // a line that has left lines_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the other members
};

}  // namespace tandem
