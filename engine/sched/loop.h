// The loop: one thread that owns every sequence, cache and coroutine.
//
// Each step takes what came in (requests, stops, finished batches), grants pages, resumes every
// ready coroutine to its next await, so that the set of pending passes is exact, and gives the
// device queues their next batches. Nothing else touches coroutines or books; backends only see
// batches.
//
// submit, stop, pause, resume, stop_all, quit, the counts, device_lost, in_one_step and
// at_one_batch are thread-safe. step() and run() belong to the loop thread; the simulator calls
// step() itself on a virtual clock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/async/ready_queue.h"
#include "engine/base/clock.h"
#include "engine/base/config.h"
#include "engine/sched/admission.h"
#include "engine/sched/dispatcher.h"
#include "engine/sched/inbox.h"
#include "engine/sched/metrics.h"
#include "engine/sched/page_queue.h"
#include "engine/sched/request_book.h"
#include "engine/sched/sequence_run.h"
#include "engine/sched/slow_readers.h"
#include "engine/sched/spec.h"
#include "engine/sched/timers.h"

namespace tandem {

struct LoopOptions {
  LimitsConfig limits;
  std::optional<uint64_t> shuffle;  // resume ready coroutines in a seeded order
  bool log_frees = false;           // batches carry kFree moves, for backends that check them
};

class Loop final : private LoopServices {
 public:
  // devices[i] is DeviceId(i); models by ModelId. `metrics` and the backends outlive the loop.
  Loop(LoopOptions options, const Clock* clock, const std::vector<Backend*>& devices,
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
  TimePoint next_timer() const { return timers_.next(); }
  void run();   // steps until quit(), sleeping between
  void quit();  // run() returns at its next step

  int64_t live() const { return live_.load(); }  // sequences not gone, with all their pages
  // When to try again after RESOURCE_EXHAUSTED, as things stand.
  Duration retry_hint() const { return Duration(retry_hint_.load()); }
  bool device_busy() const { return dispatcher_.busy(); }
  // The device failed for good (a batch ended with UNAVAILABLE): its requests end with that, and
  // new ones for its models go to their replicas on other devices, or are refused. Thread-safe,
  // stays true, and is so before any of them hears.
  bool device_lost(DeviceId device) const { return dispatcher_.lost(device); }
  // How long run() has been in one step, on the real clock; zero: in none. Thread-safe.
  Duration in_one_step() const;
  // How long the device has been at its oldest batch, since the step began in which it became that;
  // zero: it has none. Thread-safe.
  Duration at_one_batch(DeviceId device) const {
    return dispatcher_.at_one_batch(device, clock_->now());
  }
  const ModelPools& model_pools(ModelId id) const { return dispatcher_.pools(id); }
  // For checks: every sequence that is not gone.
  void visit(const std::function<void(const SequenceRun&)>& f) const {
    for (const auto& [id, run] : runs_) f(*run);
  }
  // Recounts every page. Returns what is wrong; empty: nothing.
  std::string check_pages() const;

 private:
  // LoopServices:
  TimePoint now() const override { return now_; }
  ModelPools* pools(ModelId model) override { return &dispatcher_.pools(model); }
  DeviceId device_of(ModelId model) const override { return dispatcher_.device_of(model); }
  CacheId new_cache_id() override { return CacheId(next_cache_++); }
  TicketId new_ticket_id() override { return next_ticket_++; }
  bool request_pages(SequenceRun* run) override;
  void enqueue(PassFlight* flight) override { dispatcher_.enqueue(flight); }
  int64_t begin(std::shared_ptr<Transfer> transfer) override {
    return dispatcher_.begin(std::move(transfer));
  }
  void prefix_looked_up(int64_t rows, int64_t found) override;
  void tokens_emitted(SequenceRun* run, int64_t count) override {
    requests_.charge_tokens(run->account(), count);
  }

  bool take_inbox();
  void on_submit(std::vector<SequenceSpec> choices);
  void on_stop(const Inbox::Stop& stop);
  void on_pause(const Inbox::Pause& pause);
  void on_batch_done(Inbox::BatchDone batch);
  bool fire_timers();
  bool admit();
  void admit(const Admission::Next& next);
  void start_followers(SequenceRun* leader);
  bool grant_pages();
  bool resume_ready();
  void after_resume(SequenceRun* run);
  void finish_flight(PassFlight& flight);
  void forget_values(SequenceRun* run);
  void end_all_on(DeviceId device, const absl::Status& status);
  void end(SequenceRun* run, absl::Status status);
  bool release_ended();
  void refuse(const std::vector<SequenceSpec>& choices, const absl::Status& status,
              RejectReason reason);
  void update_gauges();

  const LimitsConfig limits_;
  const Clock* const clock_;
  TimePoint now_ = clock_->now();  // when the present step began
  Metrics* const metrics_;
  Inbox inbox_;
  Dispatcher dispatcher_;
  Timers timers_;
  RequestBook requests_;
  PageQueue page_queue_;
  Admission admission_;
  SlowReaders readers_;
  ReadyQueue<SequenceRun*> ready_;
  std::unordered_map<RequestId, std::unique_ptr<SequenceRun>> runs_;  // by sequence
  std::vector<SequenceRun*> ending_;  // ended, while a device still works on a pass of theirs
  uint64_t next_order_ = 0;
  int64_t next_cache_ = 0;
  TicketId next_ticket_ = 1;
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> step_since_{0};  // nanoseconds of the steady clock; 0: between steps
  std::atomic<int64_t> retry_hint_{1'000'000'000};
};

}  // namespace tandem
