#include "server/edge/log_queue.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "engine/base/thread.h"

namespace tandem {

LogQueue::LogQueue(int fd, size_t max_bytes, std::function<std::string(int64_t)> note)
    : fd_(fd),
      max_bytes_(max_bytes),
      note_(std::move(note)),
      thread_(start_thread("the log", [this] { run(); })) {}

LogQueue::~LogQueue() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  more_.notify_all();
  stop_.wake();
  thread_.join();
}

void LogQueue::write(std::string line, LogSource source) {
  if (source.important) source.client.clear();  // counts for no client
  {
    const MutexLock lock(&mutex_);
    Line next = {std::move(line), std::move(source)};
    if (!fits(next)) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    bytes_ += next.text.size();
    if (!next.source.client.empty()) bytes_of_client_[next.source.client] += next.text.size();
    lines_.push_back(std::move(next));
  }
  more_.notify_one();
}

bool LogQueue::fits(const Line& line) const {
  const size_t quarter = max_bytes_ / 4;
  if (line.source.important) return bytes_ + line.text.size() <= max_bytes_;
  if (bytes_ + line.text.size() > max_bytes_ - quarter) return false;
  const auto own = bytes_of_client_.find(line.source.client);
  return own == bytes_of_client_.end() || own->second + line.text.size() <= quarter;
}

void LogQueue::pop() {
  const Line& line = lines_.front();
  bytes_ -= line.text.size();
  if (const auto own = bytes_of_client_.find(line.source.client); own != bytes_of_client_.end()) {
    own->second -= line.text.size();
    if (own->second == 0) bytes_of_client_.erase(own);
  }
  lines_.pop_front();
}

bool LogQueue::flush(Duration limit) {
  MutexLock lock(&mutex_);
  return less_.wait_for(lock, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return lines_.empty() && !writing_;
  });
}

void LogQueue::run() {
  MutexLock lock(&mutex_);
  for (;;) {
    more_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || !lines_.empty();
    });
    if (lines_.empty()) return;
    std::string line;
    const int64_t dropped = dropped_.load(std::memory_order_relaxed) - reported_;
    reported_ += dropped;
    if (dropped > 0) {
      line = note_(dropped);
    } else {
      line = lines_.front().text;
      pop();
    }
    writing_ = true;
    lock.unlock();
    const bool written = write_out(line);
    lock.lock();
    writing_ = false;
    if (!written && dropped == 0) {  // closed, or the disk is full; a note would fail too
      dropped_.fetch_add(1, std::memory_order_relaxed);
      ++reported_;
    }
    if (lines_.empty()) less_.notify_all();
    if (!written && stopping_) return;
  }
}

// A pipe that polls as writable accepts PIPE_BUF bytes without blocking. Polling also lets the
// destructor stop the thread.
bool LogQueue::write_out(const std::string& line) {
  const std::string whole = line + "\n";
  size_t done = 0;
  while (done < whole.size()) {
    if (!writable()) return false;
    const size_t part = std::min<size_t>(whole.size() - done, PIPE_BUF);
    const ssize_t n = ::write(fd_, whole.data() + done, part);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool LogQueue::writable() {
  for (;;) {
    pollfd polled[] = {{fd_, POLLOUT, 0}, {stop_.fd(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return false;
    if (polled[0].revents != 0) return true;
    if (polled[1].revents != 0) return false;
  }
}

}  // namespace tandem
