// The output state machine of a streaming call. The engine produces items on its threads; the
// call's thread has one operation in flight at a time. Independent of gRPC, so that tests can try
// every order of events.
//
// While a write is in flight, items of the same choice are merged, so a slow reader gets fewer
// messages. If more than the limits is unread, the engine pauses the request; it resumes below half
// of the limits.
//
//   engine:         attach   produced ... put ... end
//   call's thread:  work (posted by any of these), written, finished, done
//
// Item: index() (the choice; negative: never merged), tokens(), bytes(), append(Item).
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"

namespace tandem {

struct StreamLimits {
  int64_t unread_bytes;
  int64_t unread_tokens;
  int64_t joined_bytes;         // of one message
  int64_t hold_step = 4 << 10;  // granularity of StreamPort::hold()
};

// The operations of a stream. Those called under the stream's lock must neither block nor call the
// stream.
template <class Item>
class StreamPort {
 public:
  virtual void post() = 0;   // calls work() soon on the call's thread; called under the lock
  virtual void pause() = 0;  // called under the lock, so in order with resume()
  virtual void resume() = 0;
  virtual void cancel() = 0;
  // Unread bytes, those being written included, have become `bytes`, a multiple of
  // StreamLimits::hold_step. Called under the lock. Not called at the end: release() follows.
  virtual void hold(int64_t bytes) { static_cast<void>(bytes); }
  // On the call's thread. Completion is reported by written() and finished().
  virtual void write(Item item) = 0;
  virtual void write_last(Item item) = 0;  // and finishes with OK
  virtual void finish(const absl::Status& status) = 0;
  virtual void release() = 0;  // the stream is no longer used; may destroy it

 protected:
  ~StreamPort() = default;
};

// `PostWhileWorking` restores a former bug, which the search of the test must find.
template <class Item, class M = Mutex, bool PostWhileWorking = false>
class StreamOut {
 public:
  // `port` outlives this.
  StreamOut(const StreamLimits& limits, StreamPort<Item>* port) : limits_(limits), port_(*port) {}

  // --- Engine. One event at a time, and none after end().

  // The request is submitted: pause(), resume() and cancel() take effect from here on.
  void attach() {
    bool cancel = false;
    {
      const MutexLock lock(&mutex_);
      attached_ = true;
      cancel = cancel_wanted_;
      update_pause_locked();
    }
    if (cancel) port_.cancel();
  }

  // Counts tokens that will arrive by put(). Takes the lock only above the limit.
  void produced(int64_t tokens) {
    if (unread_tokens_.fetch_add(tokens) + tokens <= limits_.unread_tokens) return;
    const MutexLock lock(&mutex_);
    update_pause_locked();
  }

  // Produced tokens that are not sent.
  void skip(int64_t tokens) {
    unread_tokens_.fetch_sub(tokens);
    const MutexLock lock(&mutex_);
    update_pause_locked();
  }

  void put(Item item) {
    const MutexLock lock(&mutex_);
    put_locked(std::move(item));
  }

  // The stream ends with `status`, after all earlier items and `last`.
  void end(absl::Status status, std::optional<Item> last = std::nullopt) {
    const MutexLock lock(&mutex_);
    assert(!end_.has_value());
    end_ = std::move(status);
    if (last.has_value()) {
      put_locked(*std::move(last));
    } else {
      wake_locked();
    }
  }

  // --- The call's thread

  // Starts the next operation if none is in flight: a write, or the end.
  void work() {
    std::optional<Item> next;
    bool last = false;    // nothing follows `next`
    absl::Status status;  // if there is no `next`
    {
      const MutexLock lock(&mutex_);
      posted_ = false;
      if (writing_ || finish_sent_ || (queue_.empty() && !end_.has_value())) return;
      if (!queue_.empty()) {
        next = std::move(queue_.front());
        queue_.erase(queue_.begin());
        in_flight_bytes_ = next->bytes();
        unread_bytes_ -= in_flight_bytes_;
        unread_tokens_.fetch_sub(next->tokens());
        last = queue_.empty() && end_.has_value() && end_->ok();
      }
      if (!next.has_value()) status = *end_;
      finish_sent_ = !next.has_value() || last;
      writing_ = !finish_sent_;
      update_pause_locked();
    }
    if (!next.has_value()) return port_.finish(status);
    last ? port_.write_last(*std::move(next)) : port_.write(*std::move(next));
  }

  void written(bool ok) {
    {
      const MutexLock lock(&mutex_);
      assert(!posted_);  // work() is not posted while a write is in flight
      writing_ = false;
      in_flight_bytes_ = 0;
      if (!ok) {  // disconnected; done() follows, and the engine's last event ends the call
        queue_.clear();
        unread_bytes_ = 0;
        unread_tokens_.store(0);
        update_pause_locked();
      }
      hold_locked();
      if (queue_.empty() && !end_.has_value()) return;
      // work() runs now. If it were also posted, it could run after the call's end.
      if constexpr (!PostWhileWorking) posted_ = true;
    }
    work();
  }

  void finished() {
    is_finished_ = true;
    if (is_done_) port_.release();
  }

  // The call has ended, by finish() or by a disconnect. `cancel`: cancel the request.
  void done(bool cancel) {
    is_done_ = true;
    if (cancel) {
      {
        const MutexLock lock(&mutex_);
        cancel_wanted_ = true;
        cancel = attached_;
      }
      if (cancel) port_.cancel();
    }
    if (is_finished_) port_.release();
  }

 private:
  void put_locked(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    unread_bytes_ += item.bytes();
    // Merges with the last item of the same choice. Choices may overtake each other.
    const auto earlier = std::find_if(queue_.rbegin(), queue_.rend(), [&](const Item& waiting) {
      return waiting.index() >= 0 && waiting.index() == item.index();
    });
    if (earlier != queue_.rend() && earlier->bytes() + item.bytes() <= limits_.joined_bytes) {
      earlier->append(std::move(item));
    } else {
      queue_.push_back(std::move(item));
    }
    update_pause_locked();
    hold_locked();
    wake_locked();
  }

  void hold_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t steps = (unread_bytes_ + in_flight_bytes_) / limits_.hold_step;
    if (steps == held_steps_) return;
    held_steps_ = steps;
    port_.hold(steps * limits_.hold_step);
  }

  void wake_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (posted_ || writing_ || finish_sent_) return;
    posted_ = true;
    port_.post();
  }

  // Pauses or resumes the request.
  void update_pause_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!attached_ || end_.has_value()) return;
    const auto exceeds = [&](int64_t part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return unread_bytes_ > limits_.unread_bytes / part ||
             unread_tokens_.load() > limits_.unread_tokens / part;
    };
    if (!paused_ && exceeds(1)) {
      paused_ = true;
      port_.pause();
    } else if (paused_ && !exceeds(2)) {
      paused_ = false;
      port_.resume();
    }
  }

  const StreamLimits limits_;
  StreamPort<Item>& port_;
  std::atomic<int64_t> unread_tokens_{0};  // produced and not yet passed to the port

  M mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Item> queue_ ABSL_GUARDED_BY(mutex_);      // short: items of one choice are merged
  int64_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // in queue_
  int64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the write
  int64_t held_steps_ ABSL_GUARDED_BY(mutex_) = 0;       // reported by hold()
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool posted_ ABSL_GUARDED_BY(mutex_) = false;  // work() is posted
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // no items are taken once set
  bool finish_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;

  // On the call's thread:
  bool is_finished_ = false;
  bool is_done_ = false;
};

}  // namespace tandem
