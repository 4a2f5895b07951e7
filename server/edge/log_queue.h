// An asynchronous log writer: callers enqueue lines, a thread writes them. If the log is not read
// (a full pipe, a stopped collector), lines are dropped and counted. One client's lines use at most
// a quarter of the queue, and a quarter is reserved for warnings and errors.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "server/edge/socket.h"

namespace tandem {

// What caused a line.
struct LogSource {
  std::string client;      // empty: none
  bool important = false;  // a warning or an error
};

class LogQueue {
 public:
  // Writes to `fd`, which it does not own, and queues at most `max_bytes`. `note` makes the line
  // that reports dropped lines once writing resumes.
  LogQueue(int fd, size_t max_bytes, std::function<std::string(int64_t dropped)> note);
  // Writes what can be written without waiting.
  ~LogQueue();

  // `line` without its newline. Never blocks.
  void write(std::string line, LogSource source = {});

  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }  // since the start

  // Waits until all lines are written, at most `limit`. False if lines are left.
  bool flush(Duration limit);

 private:
  struct Line {
    std::string text;
    LogSource source;
  };
  bool fits(const Line& line) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  std::deque<Line> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of lines_
  // The same by client, without important lines.
  absl::flat_hash_map<std::string, size_t> bytes_of_client_ ABSL_GUARDED_BY(mutex_);
  int64_t reported_ ABSL_GUARDED_BY(mutex_) = 0;  // dropped lines that notes have reported
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // a line that has left lines_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the other members
};

}  // namespace tandem
