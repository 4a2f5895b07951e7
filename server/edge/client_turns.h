// Runs the work of many clients on a few threads, in turns: the client that has received the least
// service is next. Service is counted in the units of `cost`, such as bytes. Work of one client
// starts in order.
//
// The rule is that of engine/sched/fairness.h, without weights: a client that starts to wait is
// raised to the least service of the waiting ones, so idle time earns no credit.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"

namespace tandem {

class ClientTurns {
 public:
  // Called once: with OK on one of the threads, or with an error within cancel(), stop() or
  // enter(). Must not throw.
  using Task = absl::AnyInvocable<void(const absl::Status&)>;

  // Without threads, run_one() must be called. `clock` outlives this.
  ClientTurns(int threads, const Clock* clock);
  ~ClientTurns();  // stops, and waits for the tasks that run

  // Returns the number of the task, for cancel().
  uint64_t enter(const std::string& client, int64_t cost, Task task);
  // If the task still waits, removes it and calls it with `status`.
  void cancel(uint64_t number, const absl::Status& status);
  // Calls the tasks that wait, and all later ones, with `status`. Those that run are not affected.
  void stop(const absl::Status& status);

  // Runs the next task. False: none waits.
  bool run_one();

  size_t waiting() const;
  // The time since the start of the oldest running task; zero: none runs. Independent of how many
  // wait.
  Duration longest_running() const;

 private:
  struct Client;
  struct Waiting {
    uint64_t number;
    int64_t cost;
    Task task;
  };
  struct Client {
    std::string name;
    int64_t served = 0;
    uint64_t order = 0;  // breaks ties: smaller came first
    std::deque<Waiting> tasks;
  };
  using Key = std::pair<int64_t, uint64_t>;  // served, order

  void run();
  void quit();
  bool run_next(MutexLock<Mutex>& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Waiting take_locked(Client* client, std::deque<Waiting>::iterator at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void forget_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Key key_of(const Client& client) { return {client.served, client.order}; }

  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::unordered_map<std::string, Client> clients_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<Key, Client*>> turns_ ABSL_GUARDED_BY(mutex_);          // with tasks
  std::set<std::pair<Key, Client*>> idle_ ABSL_GUARDED_BY(mutex_);           // without
  std::unordered_map<uint64_t, Client*> client_of_ ABSL_GUARDED_BY(mutex_);  // by waiting task
  std::set<std::pair<TimePoint, uint64_t>> running_ ABSL_GUARDED_BY(mutex_);
  int64_t floor_ ABSL_GUARDED_BY(mutex_) = 0;  // least service of those that wait, or last waited
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  bool quit_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // last: they use the other members
};

}  // namespace tandem
