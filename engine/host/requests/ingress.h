// Requests between submit() and the loop: those that wait to be tokenized, and those being
// tokenized. A request whose deployment is not loaded is held until it is.
//
// Tokenizing has its own threads, so that prompts do not delay output streams. Clients are served
// fairly by bytes (sched/fairness.h), and requests of one client in order. Requests that are
// cancelled, out of time, or here when the engine stops are answered at once.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/async/worker.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"
#include "engine/sched/fairness.h"
#include "engine/sched/metrics.h"

namespace tandem {

// The status of requests that the engine ends when it stops.
absl::Status shutting_down();

class Ingress {
 public:
  struct Arrival {
    RequestId id;
    std::string client;
    int64_t bytes = 0;  // of the prompt: the cost of tokenizing it
    TimePoint submitted;
    TimePoint deadline = kNever;
    // Not empty: the request is held under this name. It waits like others, and is not started
    // before release().
    std::string held = {};
    // Called once: with OK on a tokenizing thread, or with an error on a thread of `answers`.
    absl::AnyInvocable<void(const absl::Status&)> start;
  };

  // The arguments outlive the ingress.
  Ingress(int threads, const LimitsConfig& limits, const Clock* clock, Worker* answers,
          Metrics* metrics);
  ~Ingress();  // REQUIRES: no request waits

  // RESOURCE_EXHAUSTED if too many requests are here, UNAVAILABLE after stop(). On error the
  // arrival is dropped and not started.
  absl::Status enter(Arrival arrival);

  // Lets the held requests of this name take their turns, in the order of their arrival.
  void release(const std::string& held);
  // Ends the held requests of this name with `status`.
  void fail(const std::string& held, const absl::Status& status);

  // Ends the request with `status`, at once or in hand_over(). False: it is not here.
  bool cancel(RequestId id, const absl::Status& status);

  // Called within `start`: calls `submit` and forgets the request, unless it was cancelled or the
  // engine stops. If a later cancel() returns false, `submit` has been called.
  absl::Status hand_over(RequestId id, absl::FunctionRef<void()> submit);

  // Ends present and later requests with UNAVAILABLE.
  void stop();

 private:
  struct Waiter {
    Arrival arrival;
    Account* account;
    TimePoint until;  // the deadline, or the end of the longest wait
  };
  using Queue = std::list<Waiter>;

  void run();
  // The time at which a held request expires. Others expire when a thread takes one, or one enters.
  TimePoint next_expiry_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return held_.empty() ? kNever : expiries_.begin()->first;
  }
  void queue_locked(Queue* from, Queue::iterator place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void quit();
  Waiter take_locked(Queue::iterator place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void answer_locked(Queue::iterator place, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire_locked(TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status out_of_time(const Waiter& waiter) const;
  void count_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LimitsConfig limits_;
  const Clock* const clock_;
  Worker* const answers_;
  Metrics* const metrics_;

  Mutex mutex_;
  CondVar changed_;
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  ServiceOrder turns_ ABSL_GUARDED_BY(mutex_);  // accounts with a queue
  // Without empty ones.
  std::unordered_map<Account*, Queue> queues_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Queue> held_ ABSL_GUARDED_BY(mutex_);  // by name
  std::unordered_map<RequestId, Queue::iterator> waiting_ ABSL_GUARDED_BY(mutex_);
  // Of waiting_.
  std::set<std::pair<TimePoint, RequestId>> expiries_ ABSL_GUARDED_BY(mutex_);
  // Not OK: cancelled meanwhile.
  std::unordered_map<RequestId, absl::Status> started_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool quit_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace tandem
