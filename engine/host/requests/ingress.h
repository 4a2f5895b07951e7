// What has come in and is not with the loop yet: prompts that wait to be tokenized, and those that
// are being.
//
// Threads of its own, apart from those that make text, so that nobody's prompt holds up anybody's
// stream. Clients take turns, counted in bytes (sched/fairness.h); within a client first in, first
// out. Who is cancelled, out of time, or here when the engine stops, is answered without his turn.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/async/worker.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/base/ids.h"
#include "engine/sched/fairness.h"
#include "engine/sched/metrics.h"

namespace tandem {

// What everything that runs when the engine stops ends with.
absl::Status shutting_down();

class Ingress {
 public:
  struct Arrival {
    RequestId id;
    std::string client;
    int64_t bytes = 0;  // what its tokenizing costs
    TimePoint submitted;
    TimePoint deadline = kNever;
    // Called once. OK: it is its turn, on a thread of the ingress. Else why it gets none, on a
    // thread of the pool for answers.
    absl::AnyInvocable<void(const absl::Status&)> go;
  };

  // All outlive it.
  Ingress(int threads, const LimitsConfig& limits, const Clock* clock, Worker* answers,
          Metrics* metrics);
  ~Ingress();  // REQUIRES: nothing waits

  // RESOURCE_EXHAUSTED when too many are here, UNAVAILABLE when none is wanted any more: nothing of
  // the arrival is kept then.
  absl::Status enter(Arrival arrival);

  // Whoever is here ends with CANCELLED: at once, or in pass(). False: nobody of that id is here.
  bool cancel(RequestId id);

  // In `go`, when its turn has come: hands the request on by `on`, unless it was cancelled or the
  // engine stops. A cancel() that does not find the id here comes after `on`.
  absl::Status pass(RequestId id, absl::FunctionRef<void()> on);

  // Everybody who is here or comes ends with UNAVAILABLE.
  void stop();

 private:
  struct Waiter {
    Arrival arrival;
    Account* account;
    TimePoint until;  // the deadline or the longest wait, whichever is first
  };
  using Line = std::list<Waiter>;

  void run();
  Waiter take_locked(Line::iterator place);
  void answer_locked(Line::iterator place, absl::Status status);
  void expire_locked(TimePoint now);
  absl::Status out_of_time(const Waiter& waiter) const;
  void count_locked();

  const LimitsConfig limits_;
  const Clock* const clock_;
  Worker* const answers_;
  Metrics* const metrics_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Ledger ledger_;
  ServiceOrder turns_;                               // of accounts with a line
  std::unordered_map<Account*, Line> lines_;  // none is empty
  std::unordered_map<RequestId, Line::iterator> places_;
  std::set<std::pair<TimePoint, RequestId>> ends_;
  std::unordered_map<RequestId, bool> at_work_;  // true: cancelled meanwhile
  bool stopping_ = false;
  bool quit_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace tandem
