#include "server/edge/client_turns.h"

#include <algorithm>

#include "engine/base/thread.h"
#include "server/edge/http_mutation.h"

namespace tandem {
namespace {

constexpr size_t kRemembered = 1024;  // idle clients whose service is remembered

}  // namespace

ClientTurns::ClientTurns(int threads, const Clock* clock) : clock_(*clock) {
  start_threads(
      "bodies of HTTP requests", threads, [this] { run(); }, [this] { quit(); }, &threads_);
}

ClientTurns::~ClientTurns() {
  stop(absl::CancelledError("stopped"));
  quit();
  for (std::thread& t : threads_) t.join();
}

void ClientTurns::quit() {
  {
    const MutexLock lock(&mutex_);
    quit_ = true;
  }
  changed_.notify_all();
}

uint64_t ClientTurns::enter(const std::string& client_name, int64_t cost, Task task) {
  const std::string name = mutated(HttpMutation::kFirstInFirstOut) ? "" : client_name;
  MutexLock lock(&mutex_);
  const uint64_t number = next_number_++;
  if (!stopped_.ok()) {
    const absl::Status status = stopped_;
    lock.unlock();
    task(status);
    return number;
  }
  const auto [at, created] = clients_.try_emplace(name);
  Client& client = at->second;
  if (created) client.name = name;
  if (client.tasks.empty()) {
    if (!created) idle_.erase({key_of(client), &client});
    client.served = std::max(client.served, floor_);
    client.order = number;
    turns_.insert({key_of(client), &client});
  }
  client.tasks.push_back({number, cost, std::move(task)});
  client_of_.emplace(number, &client);
  changed_.notify_one();
  return number;
}

void ClientTurns::cancel(uint64_t number, const absl::Status& status) {
  MutexLock lock(&mutex_);
  const auto found = client_of_.find(number);
  if (found == client_of_.end() || mutated(HttpMutation::kLostCancel)) return;
  Client* const client = found->second;
  const auto at = std::find_if(client->tasks.begin(), client->tasks.end(),
                               [number](const Waiting& w) { return w.number == number; });
  Waiting waiting = take_locked(client, at);
  lock.unlock();
  waiting.task(status);
}

void ClientTurns::stop(const absl::Status& status) {
  std::vector<Waiting> dropped;
  {
    const MutexLock lock(&mutex_);
    if (stopped_.ok()) stopped_ = status;
    while (!turns_.empty() && !mutated(HttpMutation::kLateDrop)) {
      Client* const client = turns_.begin()->second;
      dropped.push_back(take_locked(client, client->tasks.begin()));
    }
  }
  for (Waiting& waiting : dropped) waiting.task(status);
}

bool ClientTurns::run_one() {
  MutexLock lock(&mutex_);
  return run_next(lock);
}

size_t ClientTurns::waiting() const {
  const MutexLock lock(&mutex_);
  return client_of_.size();
}

Duration ClientTurns::longest_running() const {
  const MutexLock lock(&mutex_);
  return running_.empty() ? Duration::zero() : clock_.now() - running_.begin()->first;
}

void ClientTurns::run() {
  MutexLock lock(&mutex_);
  for (;;) {
    changed_.wait(
        lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return quit_ || !turns_.empty(); });
    if (quit_) return;
    run_next(lock);
  }
}

// Releases the lock while the task runs, which the analysis cannot follow through a reference.
bool ClientTurns::run_next(MutexLock<Mutex>& lock) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (turns_.empty()) return false;
  Client* const client = turns_.begin()->second;
  floor_ = client->served;
  Waiting next = take_locked(client, client->tasks.begin());
  // The set that holds the client is ordered by its service.
  auto& holder = client->tasks.empty() ? idle_ : turns_;
  holder.erase({key_of(*client), client});
  client->served += next.cost;
  holder.insert({key_of(*client), client});
  forget_locked();
  const auto running = running_.emplace(clock_.now(), next.number).first;
  lock.unlock();
  next.task(absl::OkStatus());
  next.task = nullptr;  // frees its captures without the lock
  lock.lock();
  running_.erase(running);
  return true;
}

// The client is then in turns_ or in idle_.
ClientTurns::Waiting ClientTurns::take_locked(Client* client, std::deque<Waiting>::iterator at) {
  Waiting waiting = std::move(*at);
  client->tasks.erase(at);
  client_of_.erase(waiting.number);
  if (client->tasks.empty()) {
    turns_.erase({key_of(*client), client});
    idle_.insert({key_of(*client), client});
  }
  return waiting;
}

// Forgets idle clients whose service no longer matters: they would be raised above it.
void ClientTurns::forget_locked() {
  while (!idle_.empty() && (idle_.begin()->first.first <= floor_ || idle_.size() > kRemembered)) {
    const Client* const client = idle_.begin()->second;
    idle_.erase(idle_.begin());
    clients_.erase(clients_.find(client->name));
  }
}

}  // namespace tandem
