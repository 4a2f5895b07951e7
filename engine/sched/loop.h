// The loop: one thread that owns every sequence, cache and coroutine.
//
// Each step takes what came in (requests, stops, finished batches), grants pages, resumes every
// ready coroutine to its next await, so that the set of pending passes is exact, and gives each
// idle lane its next batch. Nothing else touches coroutines or books; backends only see batches.
//
// submit, stop, pause, resume, stop_all, quit, the counts and device_lost are thread-safe. step()
// and run() belong to the loop thread; the simulator calls step() itself on a virtual clock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine/async/ready_queue.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/sched/lane.h"
#include "engine/sched/metrics.h"
#include "engine/sched/page_queue.h"
#include "engine/sched/sequence_run.h"
#include "engine/sched/spec.h"
#include "engine/sched/waiting.h"

namespace tandem {

// A model that sequences may name in their roles.
struct LoopModel {
  ModelId id;
  DeviceId device;
  ModelSeries* series = nullptr;  // may be null
  bool prefix_cache = true;
};

struct LoopOptions {
  LimitsConfig limits;
  std::optional<uint64_t> shuffle;  // resume ready coroutines in a seeded order
  bool log_frees = false;           // batches carry kFree moves, for backends that check them
};

class Loop final : private RunHost {
 public:
  // devices[i] is DeviceId(i); models by ModelId. `metrics` and the backends outlive the loop.
  Loop(LoopOptions options, const Clock* clock, std::vector<Backend*> devices,
       const std::vector<LoopModel>& models, Metrics* metrics);
  ~Loop() override;  // REQUIRES: no batch is with a device

  // A request with all its choices: the first one's id is the request's, and ids are not used
  // again. Each choice's listener hears of its own end; when one ends with an error, all do.
  void submit(std::vector<SequenceSpec> choices);
  void submit(SequenceSpec spec);
  // Ends a request where it is: with a status, or when that is OK as kCancelled with what is final
  // by then. Here and below, unknown ids are ignored.
  void stop(RequestId id, absl::Status status);
  // Its reader is behind: the request's sequences stop at their next round. They keep their pages
  // for limits.slow_reader_hold_seconds, unless others want them; after
  // limits.stalled_stream_seconds the request ends with RESOURCE_EXHAUSTED.
  void pause(RequestId id);
  void resume(RequestId id);
  void stop_all(absl::Status status);

  // Does what can be done now. False: nothing could.
  bool step();
  // When time alone makes something happen; kNever: nothing is timed.
  TimePoint next_timer() const;
  void run();   // steps until quit(), sleeping between
  void quit();  // run() returns at its next step

  int64_t live() const { return live_.load(); }  // sequences not gone, with all their pages
  // When to try again after RESOURCE_EXHAUSTED, as things stand.
  Duration retry_hint() const { return Duration(retry_hint_.load()); }
  bool device_busy() const;
  // The device failed for good (a batch ended with UNAVAILABLE): its requests end with that, and
  // new ones for its models are refused. Thread-safe, stays true, and is so before any of them
  // hears.
  bool device_lost(DeviceId device) const { return lanes_[device.index()].lost(); }
  const ModelPools& model_pools(ModelId id) const { return *models_[id.index()].pools; }
  // For checks: every sequence that is not gone.
  void visit(const std::function<void(const SequenceRun&)>& f) const {
    for (const auto& [id, run] : runs_) f(*run);
  }
  // Recounts every page. Returns what is wrong; empty: nothing.
  std::string check_pages() const;

 private:
  struct Stop {
    RequestId id;  // 0: all
    absl::Status status;
  };
  struct Pause {
    RequestId id;
    bool on;
  };
  struct BatchDone {
    DeviceId device;
    BatchResult result;
  };
  using Message = std::variant<std::vector<SequenceSpec>, Stop, Pause, BatchDone>;
  struct Model {
    std::unique_ptr<ModelPools> pools;
    DeviceId device;
    ModelSeries* series;
    int running = 0;  // sequences that may take its pages: admitted, not held, not ended
  };
  // What a client sent, until its last choice has ended.
  struct Request {
    std::vector<SequenceRun*> choices;    // that have not ended, the first one first
    std::vector<SequenceRun*> following;  // of these, not started yet
    Account* account = nullptr;
    bool admitted = false;
    bool paused = false;
    SequenceEnd end;  // of the first choice, or the one that failed
  };

  // RunHost:
  TimePoint now() const override { return now_; }
  ModelPools* pools(ModelId model) override { return models_[model.index()].pools.get(); }
  DeviceId device_of(ModelId model) const override { return models_[model.index()].device; }
  CacheId new_cache_id() override { return CacheId(next_cache_++); }
  TicketId new_ticket_id() override { return next_ticket_++; }
  bool ask_pages(SequenceRun* run) override;
  void enqueue(std::shared_ptr<PassFlight> flight) override;
  void order_moves(ModelId first, ModelId then) override;
  void prefix_looked_up(int64_t rows, int64_t found) override;
  void tokens_emitted(SequenceRun* run, int64_t count) override;

  void post(Message message);
  bool take_inbox();
  void on_submit(std::vector<SequenceSpec> choices);
  void on_stop(const Stop& stop);
  void on_pause(const Pause& pause);
  void on_batch_done(BatchDone done);
  void finish_flight(PassFlight& flight);
  bool available(TicketId ticket) const;
  void forget_values(SequenceRun* run);
  TimePoint queue_end(const SequenceRun& run) const;
  void set_timer(TimePoint when, RequestId id);
  void drop_timer(TimePoint when, RequestId id);
  bool fire_timers();
  absl::Status can_ever_fit(const SequenceSpec& spec, int choices) const;
  absl::Status can_be_served(const SequenceSpec& spec) const;
  int slots_used() const;
  void count_running(const SequenceRun& run, int by);
  bool admit();
  bool has_room(const SequenceRun& run, int choices);
  void let_in(SequenceRun* first);
  void start_followers(SequenceRun* leader);
  void hold(SequenceRun* run);
  void let_go_on(SequenceRun* run);
  bool grant_pages();
  bool resume_ready();
  bool launch();
  void end(SequenceRun* run, absl::Status status);
  void end_request(RequestId id, const Request& request, const SequenceSpec& spec);
  void end_all_on(DeviceId device, const absl::Status& status);
  bool reap();
  void refuse(const std::vector<SequenceSpec>& choices, const absl::Status& status,
              RejectReason reason);
  void after_resume(SequenceRun* run);
  void update_gauges();

  const LoopOptions options_;
  const Clock* const clock_;
  TimePoint now_ = clock_->now();  // when the present step began
  Metrics* const metrics_;
  std::deque<Lane> lanes_;     // by device
  std::vector<Model> models_;  // by model
  ReadyQueue ready_;
  Ledger ledger_;
  WaitingRoom waiting_;
  RetryHint hint_;
  std::unordered_map<RequestId, std::unique_ptr<SequenceRun>> runs_;  // by sequence
  std::unordered_map<RequestId, Request> requests_;
  PageQueue page_queue_;
  std::vector<SequenceRun*> ending_;  // ended, while a device still works on a pass of theirs
  struct Value {
    DeviceId device;
    bool done;
  };
  std::unordered_map<TicketId, Value> values_;  // passes whose values stay on a device
  std::multiset<std::pair<TimePoint, RequestId>> timers_;
  int running_ = 0;  // sequences admitted, not held, not ended
  int held_ = 0;     // sequences that stand still for their readers
  uint64_t next_order_ = 0;
  int64_t next_cache_ = 0;
  TicketId next_ticket_ = 1;
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> retry_hint_{1'000'000'000};

  std::mutex inbox_mutex_;  // guards the three below
  std::condition_variable inbox_filled_;
  std::vector<Message> inbox_;
  bool quit_ = false;
};

}  // namespace tandem
