// Lines on their way to the log. Whoever logs hands a line over and goes on; a thread writes. When
// nobody reads the log (a full pipe, a stopped collector) lines are dropped and counted, and
// nothing else happens.
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
  // Writes to `fd`, which it does not own, and holds at most `max_bytes`. `note` makes the line
  // that says how many were dropped, when writing goes on.
  LogQueue(int fd, size_t max_bytes, std::function<std::string(int64_t dropped)> note);
  // Writes what can be written at once.
  ~LogQueue();

  // `line` without its newline. Never blocks.
  void write(std::string line);

  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }  // since the start

  // Waits until everything is written, but no longer than `limit`. False: something is left.
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
  int64_t told_ ABSL_GUARDED_BY(mutex_) = 0;      // of dropped_, in notes
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // a line that is no more in lines_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the rest
};

}  // namespace tandem
