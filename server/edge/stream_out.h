// What a streaming call says, and when: the state of one stream between the engine, which makes
// items of it on its threads, and the call's own thread, which has one operation in flight at a
// time. Knows nothing of gRPC, so that tests can search through every order of events.
//
// While a write is in flight, further items of the same choice are joined into one, so a slow
// reader costs messages, not memory. When more of the stream is on its way to the client than the
// limits allow, the engine is told to pause; it goes on when less than half is.
//
//   engine:         attach   made ... put ... end
//   call's thread:  work (posted by any of these), written, finished, over
//
// Item: index() (its choice; negative: joined with nothing), tokens(), bytes(), append(Item).
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
  int64_t joined_bytes;  // of one message
};

// What a stream does. Calls from under the stream's lock must not block, nor call the stream.
template <class Item>
class StreamPort {
 public:
  virtual void post() = 0;   // has work() called, soon, on the call's thread; under the lock
  virtual void pause() = 0;  // under the lock, and so in order with resume()
  virtual void resume() = 0;
  virtual void cancel() = 0;
  // On the call's thread. Their ends are told by written() and finished().
  virtual void write(Item item) = 0;
  virtual void write_last(Item item) = 0;  // and finishes with OK
  virtual void finish(const absl::Status& status) = 0;
  virtual void release() = 0;  // nothing of the stream is used any more; may destroy it

 protected:
  ~StreamPort() = default;
};

// `PostWhileWorking` plants a bug that was once there, for the search to find.
template <class Item, class M = Mutex, bool PostWhileWorking = false>
class StreamOut {
 public:
  // `port` outlives it.
  StreamOut(const StreamLimits& limits, StreamPort<Item>* port) : limits_(limits), port_(*port) {}

  // --- Engine. One event at a time, and none after end().

  // The engine knows the request: pause(), resume() and cancel() reach it from here on.
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

  // So many tokens are on their way to put(). Takes the lock only where there is something to tell.
  void made(int64_t tokens) {
    if (unread_tokens_.fetch_add(tokens) + tokens <= limits_.unread_tokens) return;
    const MutexLock lock(&mutex_);
    update_pause_locked();
  }

  // Tokens that were made, and of which nobody will read anything.
  void skip(int64_t tokens) {
    unread_tokens_.fetch_sub(tokens);
    const MutexLock lock(&mutex_);
    update_pause_locked();
  }

  void put(Item item) {
    const MutexLock lock(&mutex_);
    put_locked(std::move(item));
  }

  // The stream ends with `status`, after `last` if there is one, and all that was put before.
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
        unread_bytes_ -= next->bytes();
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
      assert(!posted_);  // nobody posts while a write is in flight
      writing_ = false;
      if (!ok) {  // the client is gone; over() follows, and the engine's last event ends the call
        queue_.clear();
        unread_bytes_ = 0;
        unread_tokens_.store(0);
        update_pause_locked();
      }
      if (queue_.empty() && !end_.has_value()) return;
      // As work() comes now: posted besides, it might come once the call is over.
      if constexpr (!PostWhileWorking) posted_ = true;
    }
    work();
  }

  void finished() {
    is_finished_ = true;
    if (is_over_) port_.release();
  }

  // The call is over: by finish(), or because the client is gone. `cancel`: the engine must hear.
  void over(bool cancel) {
    is_over_ = true;
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
    // Joins the last one of its choice; choices may overtake each other.
    const auto earlier = std::find_if(queue_.rbegin(), queue_.rend(), [&](const Item& waiting) {
      return waiting.index() >= 0 && waiting.index() == item.index();
    });
    if (earlier != queue_.rend() && earlier->bytes() + item.bytes() <= limits_.joined_bytes) {
      earlier->append(std::move(item));
    } else {
      queue_.push_back(std::move(item));
    }
    update_pause_locked();
    wake_locked();
  }

  void wake_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (posted_ || writing_ || finish_sent_) return;
    posted_ = true;
    port_.post();
  }

  // Tells the engine to wait for the reader, or to go on.
  void update_pause_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!attached_ || end_.has_value()) return;
    const auto over = [&](int64_t part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return unread_bytes_ > limits_.unread_bytes / part ||
             unread_tokens_.load() > limits_.unread_tokens / part;
    };
    if (!paused_ && over(1)) {
      paused_ = true;
      port_.pause();
    } else if (paused_ && !over(2)) {
      paused_ = false;
      port_.resume();
    }
  }

  const StreamLimits limits_;
  StreamPort<Item>& port_;
  std::atomic<int64_t> unread_tokens_{0};  // made by the engine, and not handed to the port

  M mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Item> queue_ ABSL_GUARDED_BY(mutex_);   // a few: what is of one choice is joined
  int64_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in queue_
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool posted_ ABSL_GUARDED_BY(mutex_) = false;  // work() will come
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // no items are taken once set
  bool finish_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;

  bool is_finished_ = false;  // the call's thread
  bool is_over_ = false;      // likewise
};

}  // namespace tandem
