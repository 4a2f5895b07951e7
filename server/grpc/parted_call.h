// A call that several engine requests answer, one for each part, a few at a time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"
#include "server/edge/peer.h"
#include "server/grpc/call_info.h"

namespace tandem {

// Thread-safe. `Request` and `Response` are messages of the API.
template <class Request, class Response>
class PartedCall {
 public:
  using Done = std::function<void(absl::StatusOr<Response>)>;

  virtual ~PartedCall() = default;

  // Ends it with CANCELLED.
  void cancel() { fail(absl::CancelledError("cancelled by the client")); }

 protected:
  // `parts` gives the number of parts of a request. `open` is released before `done` is called,
  // which happens once, possibly within send_first().
  PartedCall(Request asked, int (Request::*parts)() const, const CallInfo& info,
             std::function<void(RequestId)> cancel_one, std::shared_ptr<OpenCall> open, Done done)
      : request(std::move(asked)),
        request_id(info.request_id),
        client_(info.client),
        host_(host_of(info.peer)),
        deadline_(info.deadline),
        cancel_one_(std::move(cancel_one)),
        done_([open = std::move(open), done = std::move(done)](auto response) mutable {
          open.reset();
          done(std::move(response));
        }),
        missing_((request.*parts)()),
        running_(static_cast<size_t>(missing_)) {}

  // Sends the engine request of a part.
  virtual void submit(int part) = 0;
  // Called once, when no part is missing.
  virtual Response response() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  void send_first(int count) {
    for (int i = 0; i < count; ++i) send_next();
  }

  // An engine request with the fields that are equal for all parts.
  template <class EngineRequest>
  EngineRequest part_request() const {
    EngineRequest one;
    one.model = request.model();
    one.request_id = request_id;
    one.client = client_;
    one.host = host_;
    one.deadline = deadline_;
    one.priority = request.priority();
    one.part_of_call = true;
    return one;
  }

  void sent(int part, RequestId id) {
    bool ended = false;
    {
      const MutexLock lock(&mutex);
      RequestId& running = running_[static_cast<size_t>(part)];
      running = std::max(running, id);  // a later request of this part may have begun meanwhile
      ended = !done_;
    }
    if (ended) cancel_one_(id);  // fail() could not know this one
  }

  // A part's result has been stored. Sends the next part, or ends the call.
  void part_done() {
    Done done;
    Response all;
    {
      const MutexLock lock(&mutex);
      if (!done_) return;
      if (--missing_ == 0) {
        all = response();
        done = std::exchange(done_, nullptr);
      }
    }
    if (done) return done(std::move(all));
    send_next();
  }

  // Ends the call and cancels the other parts.
  void fail(const absl::Status& status) {
    Done done;
    std::vector<RequestId> running;
    {
      const MutexLock lock(&mutex);
      if (!done_) return;
      done = std::exchange(done_, nullptr);
      running = running_;
    }
    for (const RequestId id : running) {
      if (id != RequestId{}) cancel_one_(id);
    }
    done(status);
  }

  const Request request;
  const std::string request_id;
  Mutex mutex;

 private:
  void send_next() {
    int part = 0;
    {
      const MutexLock lock(&mutex);
      if (!done_ || next_ == static_cast<int>(running_.size())) return;
      part = next_++;
    }
    submit(part);
  }

  const std::string client_;
  const std::string host_;
  const TimePoint deadline_;
  const std::function<void(RequestId)> cancel_one_;

  Done done_ ABSL_GUARDED_BY(mutex);  // null: called
  int next_ ABSL_GUARDED_BY(mutex) = 0;
  int missing_ ABSL_GUARDED_BY(mutex);
  std::vector<RequestId> running_ ABSL_GUARDED_BY(mutex);  // by part
};

}  // namespace tandem
