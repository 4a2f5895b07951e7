// The loop: one thread that owns every sequence, cache and coroutine.
//
// Each step processes messages (requests, stops, finished batches), grants pages, resumes every
// ready coroutine to its next await and launches batches. All pending passes are therefore known
// when a batch is selected. No other thread touches coroutines or bookkeeping; backends see only
// batches.
//
// submit, stop, pause, resume, stop_all, list_prefixes, forget_lora, read, edit, add_models,
// remove_models, quit, live, retry_hint, device_lost, in_one_step and at_one_batch are thread-safe.
// step() and run() are for the loop thread. The simulator calls step() on a virtual clock.
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
  bool log_frees = false;           // batches carry kFree moves, for backends that check memory
};

class Loop final : private LoopServices {
 public:
  // devices[i] is DeviceId(i); models by ModelId. `metrics` and the backends outlive the loop.
  Loop(LoopOptions options, const Clock* clock, const std::vector<Backend*>& devices,
       const std::vector<LoopModel>& models, Metrics* metrics);
  ~Loop() override;  // REQUIRES: no batch is on a device

  // Submits a request with all its choices. The first choice's id is the request's; ids are never
  // reused. Each choice's listener receives its own end. If one ends with an error, all do.
  void submit(std::vector<SequenceSpec> choices);
  void submit(SequenceSpec spec);
  // Ends a request with an error, or, if `status` is OK, as kCancelled with its tokens so far. Here
  // and below, unknown ids are ignored.
  void stop(RequestId id, absl::Status status);
  // Backpressure: holds the request's sequences at their next round until resume(). They keep their
  // pages for limits.slow_reader_hold_seconds, unless preempted. After
  // limits.stalled_stream_seconds the request ends with RESOURCE_EXHAUSTED.
  void pause(RequestId id);
  void resume(RequestId id);
  void stop_all(absl::Status status);

  // PrefixIndex::shared() of the model's pools. `done` is called once, on the loop thread.
  void list_prefixes(ModelId model, size_t most,
                     std::function<void(std::vector<PrefixIndex::SharedPage>)> done);
  // Removes the prefixes of a LoRA adapter, which no sequence has any more, from these models.
  void forget_lora(std::vector<ModelId> models, LoraId lora);
  // Reads pages of the model's prefix index.
  void read(PageRead read);
  // Changes the pools of a model.
  void edit(PoolEdit edit);

  // Adds models that their devices have, while the loop runs. An id is new, or that of a model that
  // was removed. `done` is called once, on the loop thread; then casts may name them.
  void add_models(std::vector<LoopModel> models, std::function<void()> done);
  // Removes models that no later request names. `done` is called once, on the loop thread, when all
  // sequences that name them are released and the devices are done with their pages.
  void remove_models(std::vector<ModelId> models, std::function<void()> done);

  // Makes all progress that is possible now. False: none was.
  bool step();
  // The time of the next timer; kNever: none is set.
  TimePoint next_timer() const { return timers_.next(); }
  void run();   // steps until quit(), sleeping in between
  void quit();  // run() returns at its next step

  int64_t live() const { return live_.load(); }  // sequences that are not released yet
  // The retry delay for RESOURCE_EXHAUSTED at the current load.
  Duration retry_hint() const { return Duration(retry_hint_.load()); }
  bool device_busy() const { return dispatcher_.busy(); }
  // True: the device has failed permanently (a batch ended with UNAVAILABLE). Its requests end with
  // that error; new ones use replicas on other devices, or are refused. Set before the requests
  // end, and never reset. Thread-safe.
  bool device_lost(DeviceId device) const { return dispatcher_.lost(device); }
  // The age of run()'s current step on the real clock; zero: none. Thread-safe.
  Duration in_one_step() const;
  // The age of the device's oldest batch, from the step in which it became the oldest; zero: none.
  // Thread-safe.
  Duration at_one_batch(DeviceId device) const {
    return dispatcher_.at_one_batch(device, clock_->now());
  }
  // The times of the model's batches, to be saved or restored. REQUIRES: the loop does not run.
  BatchTime& batch_time(ModelId model) { return dispatcher_.batch_time(model); }
  const ModelPools& model_pools(ModelId id) const { return dispatcher_.pools(id); }
  // Visits every sequence that is not released. For checks.
  void visit(const std::function<void(const SequenceRun&)>& f) const {
    for (const auto& [id, run] : runs_) f(*run);
  }
  // Recounts every page. Returns the first error; empty: none.
  std::string check_pages() const;

 private:
  // LoopServices:
  TimePoint now() const override { return now_; }
  ModelPools* pools(ModelId model) override { return &dispatcher_.pools(model); }
  DeviceId device_of(ModelId model) const override { return dispatcher_.device_of(model); }
  ModelLoad load(ModelId model) const override;
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
  void on_batch_done(Inbox::BatchDone&& batch);
  void on_late_done(Inbox::LateDone&& late);
  bool remove_unused_models();
  void take_finished();
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
  TimePoint now_ = clock_->now();  // the start of the current step
  Metrics* const metrics_;
  Inbox inbox_;
  std::vector<Inbox::Message> messages_;  // of the current step
  Dispatcher dispatcher_;
  Dispatcher::Finished finished_;  // by the last batch; reused
  Timers timers_;
  RequestBook requests_;
  PageQueue page_queue_;
  Admission admission_;
  SlowReaders readers_;
  ReadyQueue<SequenceRun*> ready_;
  std::unordered_map<RequestId, std::unique_ptr<SequenceRun>> runs_;  // by sequence
  std::vector<SequenceRun*> ending_;           // ended, but a device may still run their passes
  std::vector<Inbox::RemoveModels> removals_;  // of models that sequences still name
  uint64_t next_order_ = 0;
  int64_t next_cache_ = 0;
  TicketId next_ticket_ = 1;
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> step_since_{0};  // nanoseconds of the steady clock; 0: between steps
  std::atomic<int64_t> retry_hint_{1'000'000'000};
};

}  // namespace tandem
