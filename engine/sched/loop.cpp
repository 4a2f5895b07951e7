#include "engine/sched/loop.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/base/prefetch.h"
#include "engine/base/status.h"
#include "engine/decode/text_history.h"

namespace tandem {
namespace {

BatchLimits full_batches(const LimitsConfig& limits) {
  BatchLimits full;
  full.step_rows = limits.step_rows;
  full.chunk_rows = limits.prefill_chunk_rows;
  full.works = limits.max_running;
  return full;
}

// True: a copy between devices is under way.
bool copies(const Dispatcher& dispatcher) {
  for (size_t m = 0; m < dispatcher.models(); ++m) {
    const auto id = ModelId(static_cast<int64_t>(m));
    if (dispatcher.has_model(id) && dispatcher.pools(id).kv.pinned() > 0) return true;
  }
  return false;
}

}  // namespace

Loop::Loop(LoopOptions options, const Clock* clock, const std::vector<Backend*>& devices,
           const std::vector<LoopModel>& models, Metrics* metrics)
    : limits_(options.limits),
      clock_(clock),
      metrics_(metrics),
      dispatcher_(
          devices, models, full_batches(limits_), options.log_frees, &metrics->device_copy_bytes,
          [this](DeviceId device, BatchResult result) {
            inbox_.post(Inbox::BatchDone{device, std::move(result)});
          },
          [this](PassFlight* flight, WorkResult result) {
            inbox_.post(Inbox::LateDone{flight, std::move(result)});
          }),
      requests_({limits_.fair_prompt_weight, limits_.fair_token_weight, limits_.client_weights},
                metrics),
      page_queue_(limits_.preemption),
      admission_(limits_, &dispatcher_, &requests_, &page_queue_, metrics),
      readers_(limits_, &timers_, &page_queue_, &admission_) {
  if (options.shuffle) ready_.shuffle(*options.shuffle);
  if (mutated(Mutation::kUnseededOrder)) {
    ready_.shuffle(static_cast<uint64_t>(SteadyClock().now().time_since_epoch().count()));
  }
  update_gauges();
}

Loop::~Loop() { TANDEM_CHECK(!device_busy()); }

// --- From other threads

void Loop::submit(std::vector<SequenceSpec> choices) {
  live_.fetch_add(static_cast<int64_t>(choices.size()));
  inbox_.post(std::move(choices));
}

void Loop::submit(SequenceSpec spec) {
  std::vector<SequenceSpec> choices;
  choices.push_back(std::move(spec));
  submit(std::move(choices));
}

void Loop::stop(RequestId id, absl::Status status) {
  inbox_.post(Inbox::Stop{id, std::move(status)});
}
void Loop::stop_all(absl::Status status) { inbox_.post(Inbox::Stop{0, std::move(status)}); }
void Loop::pause(RequestId id) { inbox_.post(Inbox::Pause{id, true}); }
void Loop::resume(RequestId id) { inbox_.post(Inbox::Pause{id, false}); }
void Loop::list_prefixes(ModelId model, size_t most,
                         std::function<void(std::vector<PrefixIndex::SharedPage>)> done) {
  inbox_.post(Inbox::ListPrefixes{model, most, std::move(done)});
}
void Loop::forget_lora(std::vector<ModelId> models, LoraId lora) {
  inbox_.post(Inbox::ForgetLora{std::move(models), lora});
}
void Loop::read(PageRead read) { inbox_.post(std::move(read)); }
void Loop::edit(PoolEdit edit) { inbox_.post(std::move(edit)); }
void Loop::add_models(std::vector<LoopModel> models, std::function<void()> done) {
  inbox_.post(Inbox::AddModels{std::move(models), std::move(done)});
}
void Loop::remove_models(std::vector<ModelId> models, std::function<void()> done) {
  inbox_.post(Inbox::RemoveModels{std::move(models), std::move(done)});
}
void Loop::quit() { inbox_.quit(); }

// --- Steps

void Loop::run() {
  for (;;) {
    step_since_.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                      std::memory_order_relaxed);
    const bool progress = step();
    step_since_.store(0, std::memory_order_relaxed);
    if (!inbox_.wait(progress ? TimePoint() : next_timer(), *clock_)) return;
  }
}

Duration Loop::in_one_step() const {
  const int64_t since = step_since_.load(std::memory_order_relaxed);
  if (since == 0) return Duration::zero();
  return std::chrono::steady_clock::now().time_since_epoch() - Duration(since);
}

bool Loop::step() {
  bool progress = take_inbox();
  progress |= fire_timers();
  for (bool again = true; again; progress |= again) {
    again = admit();
    again |= grant_pages();
    again |= resume_ready();
    again |= release_ended();
    again |= remove_unused_models();
  }
  progress |= dispatcher_.launch(now());
  if (progress) update_gauges();
  return progress;
}

bool Loop::take_inbox() {
  messages_ = inbox_.take(std::move(messages_));
  now_ = clock_->now();  // not before any of the messages
  for (Inbox::Message& m : messages_) {
    if (auto* choices = std::get_if<Inbox::Submit>(&m)) {
      on_submit(std::move(*choices));
    } else if (auto* stop = std::get_if<Inbox::Stop>(&m)) {
      on_stop(*stop);
    } else if (auto* pause = std::get_if<Inbox::Pause>(&m)) {
      on_pause(*pause);
    } else if (auto* late = std::get_if<Inbox::LateDone>(&m)) {
      on_late_done(std::move(*late));
    } else if (const auto* list = std::get_if<Inbox::ListPrefixes>(&m)) {
      list->done(dispatcher_.pools(list->model).prefixes.shared(list->most));
    } else if (const auto* forget = std::get_if<Inbox::ForgetLora>(&m)) {
      for (const ModelId model : forget->models) dispatcher_.pools(model).forget_lora(forget->lora);
    } else if (auto* read = std::get_if<PageRead>(&m)) {
      dispatcher_.read(std::move(*read));
    } else if (auto* edit = std::get_if<PoolEdit>(&m)) {
      dispatcher_.edit(std::move(*edit));
    } else if (const auto* add = std::get_if<Inbox::AddModels>(&m)) {
      dispatcher_.add_models(add->models);
      admission_.models_added();
      add->done();
    } else if (auto* remove = std::get_if<Inbox::RemoveModels>(&m)) {
      removals_.push_back(std::move(*remove));
    } else {
      on_batch_done(std::move(std::get<Inbox::BatchDone>(m)));
    }
  }
  const bool any = !messages_.empty();
  messages_.clear();
  return any;
}

void Loop::on_submit(std::vector<SequenceSpec> choices) {
  const auto n = static_cast<int>(choices.size());
  RejectReason reason = RejectReason::kInvalid;
  const absl::Status status = admission_.check(choices.front(), n, now(), &reason);
  if (!status.ok()) {
    refuse(choices, status, reason);
    live_.fetch_sub(n);
    return;
  }
  const RequestId id = choices.front().id;
  OpenRequest& request = requests_.open(id, choices.front().client);
  LoopServices* services = this;
  for (SequenceSpec& spec : choices) {
    auto run = std::make_unique<SequenceRun>(std::move(spec), next_order_++, services);
    run->belongs_to(id, request.account);
    request.choices.push_back(run.get());
    for (const TimePoint t :
         {admission_.queue_end(run->spec()), run->spec().deadline, run->spec().time_limit}) {
      timers_.set(t, run->id());
    }
    dispatcher_.count_sequence(run->spec(), 1);
    const bool new_id = runs_.emplace(run->id(), std::move(run)).second;
    TANDEM_CHECK(new_id);
  }
  admission_.wait(request.choices.front());
}

void Loop::on_stop(const Inbox::Stop& stop) {
  std::vector<SequenceRun*> all;
  if (stop.id != 0) {
    if (const OpenRequest* request = requests_.find(stop.id)) all = request->choices;
  } else {
    for (const auto& [id, run] : runs_) all.push_back(run.get());
  }
  for (SequenceRun* run : all) {
    if (mutated(Mutation::kLostCancel) && run->flights() > 0) continue;
    run->end_with(FinishReason::kCancelled);
    end(run, stop.status);
  }
}

void Loop::on_pause(const Inbox::Pause& pause) {
  if (mutated(Mutation::kUnboundedReader)) return;
  OpenRequest* const request = requests_.find(pause.id);
  if (!request || request->paused == pause.on) return;
  requests_.pause(*request, pause.on);
  for (SequenceRun* run : request->choices) {
    if (pause.on) {
      readers_.pause(run, now());
    } else if (readers_.resume(run)) {
      ready_.push(run->take_waiter(), run);
    }
  }
}

bool Loop::fire_timers() {
  bool fired = false;
  while (const auto id = timers_.take_due(now())) {
    fired = true;
    SequenceRun* const run = runs_.at(*id).get();  // end() removes a sequence's timers
    const SequenceSpec& spec = run->spec();
    if (spec.deadline <= now()) {
      end(run, absl::DeadlineExceededError("the request's deadline passed"));
    } else if (spec.time_limit <= now()) {
      run->end_with(FinishReason::kTimeLimit);
      end(run, absl::OkStatus());
    } else if (run->state() == SequenceRun::kWaiting && admission_.queue_end(spec) <= now()) {
      metrics_->rejected[static_cast<size_t>(RejectReason::kQueueTime)].add();
      end(run, admission_.queue_timeout(spec, now()));
    } else if (readers_.is_stalled(run, now())) {
      end(run, readers_.stalled_status());
    } else if (readers_.hold_is_over(run, now())) {
      if (run->flights() == 0 && run->caches().holds_pages()) {
        run->preempt();
        metrics_->preemptions.add();
      }
    }
  }
  return fired;
}

// --- Admission

bool Loop::admit() {
  bool any = false;
  for (Admission::Next next; next = admission_.next(), next.first != nullptr; any = true) {
    admit(next);
  }
  return any;
}

void Loop::admit(const Admission::Next& next) {
  SequenceRun* const first = next.first;
  OpenRequest& request = requests_.at(first->request());
  admission_.leave(first);
  requests_.admit(request, first->spec(), now());
  for (SequenceRun* run : request.choices) {
    if (!next.models.empty()) run->place(next.models);
    run->enter(run == first ? SequenceRun::kRunning : SequenceRun::kFollowing);
    run->accounts().admitted(now());
    timers_.drop(admission_.queue_end(run->spec()), run->id());
    admission_.take_slot(*run);
    run->spec().listener->on_admitted();
  }
  request.following.assign(request.choices.begin() + 1, request.choices.end());
  first->lead(!request.following.empty());
  // The first await is its first round, so it has its pages before the next request is considered.
  first->start().resume();
  after_resume(first);
}

// Other choices start with the prompt rows that the first one has in memory: all of them, unless it
// ended early.
void Loop::start_followers(SequenceRun* leader) {
  leader->lead(false);
  for (SequenceRun* run : std::exchange(requests_.at(leader->request()).following, {})) {
    run->enter(SequenceRun::kRunning);
    const std::coroutine_handle<> begin = run->start();
    run->adopt(*leader);
    ready_.push(begin, run);
  }
}

// --- Pages

bool Loop::request_pages(SequenceRun* run) {
  if (run->flights() == 0) {  // else passes under way may read the values
    forget_values(run);
    if (run->leads() && run->accounts().has_first_token()) start_followers(run);
  }
  if (readers_.is_behind(run)) {
    readers_.hold(run, now());
    return false;
  }
  return page_queue_.request(run);
}

bool Loop::grant_pages() {
  if (page_queue_.idle()) return false;
  const PageQueue::Served served =
      page_queue_.serve([this](const SequenceRun& run, const std::vector<const PagePool*>& pools) {
        const auto moving = [](const PagePool* p) { return p->pinned() > 0; };
        if (std::ranges::any_of(pools, moving)) return true;
        return std::any_of(runs_.begin(), runs_.end(), [&](const auto& entry) {
          const SequenceRun& other = *entry.second;
          const bool waits = other.state() == SequenceRun::kPaused && other.flights() == 0;
          return &other != &run && !waits && other.caches().holds_pages_of(pools);
        });
      });
  if (!mutated(Mutation::kHiddenPreemption)) metrics_->preemptions.add(served.preempted);
  for (SequenceRun* run : served.granted) ready_.push(run->take_waiter(), run);
  for (SequenceRun* run : served.hopeless) {
    end(run, with_reason(absl::ResourceExhaustedError(
                             "the request needs more KV memory than its model has (kv_pages)"),
                         "OUT_OF_KV_MEMORY"));
  }
  return !served.granted.empty() || !served.hopeless.empty() || served.preempted > 0;
}

// --- Coroutines and batches

bool Loop::resume_ready() {
  bool any = false;
  while (const auto entry = ready_.pop()) {
    any = true;
    if (const auto* const later = ready_.peek(1)) later->owner->prefetch_round(later->waiter);
    if (const auto* const later = ready_.peek(2)) prefetch(later->owner);
    entry->waiter.resume();
    after_resume(entry->owner);
  }
  return any;
}

void Loop::after_resume(SequenceRun* run) {
  if (run->method_done()) end(run, absl::OkStatus());
}

void Loop::on_batch_done(Inbox::BatchDone&& batch) {
  const absl::Status status = batch.result.status;
  dispatcher_.finish(batch.device, std::move(batch.result), now(), &finished_);
  take_finished();
  if (finished_.lost) end_all_on(batch.device, status);
}

void Loop::on_late_done(Inbox::LateDone&& late) {
  dispatcher_.finish_late(late.flight, std::move(late.result), &finished_);
  take_finished();
}

void Loop::take_finished() {
  for (PassFlight* flight : finished_.done) finish_flight(*flight);
  for (const auto& [run, failure] : finished_.failed) end(run, failure);
}

void Loop::finish_flight(PassFlight& flight) {
  SequenceRun* const run = flight.sequence;
  const std::coroutine_handle<> waiter = flight.waiter;
  const TicketId id = flight.id;
  run->flight_done(flight);
  if (run->flights() == 0 && run->state() == SequenceRun::kPaused) forget_values(run);
  if (mutated(Mutation::kLostWaiter) && id % 97 == 0) return;
  if (waiter) ready_.push(waiter, run);
}

void Loop::forget_values(SequenceRun* run) {
  run->forget_values([this](const PassFlight& flight) { dispatcher_.forget(flight); });
}

// Ends the requests that run on this device, and waiting ones without another replica.
void Loop::end_all_on(DeviceId device, const absl::Status& status) {
  std::vector<SequenceRun*> hit;
  for (const auto& [id, run] : runs_) {
    const auto there = [&](const CastRole& r) {
      const auto replicas = dispatcher_.replicas(r.model);
      return std::ranges::any_of(replicas, [&](ModelId m) { return device_of(m) == device; });
    };
    const bool spreads =
        mutated(Mutation::kLossSpreads) && std::ranges::any_of(run->spec().roles(), there);
    if (spreads || !dispatcher_.can_serve(run->spec()).ok()) hit.push_back(run.get());
  }
  for (SequenceRun* run : hit) end(run, status);
}

// --- Ends

void Loop::end(SequenceRun* run, absl::Status status) {
  if (run->state() == SequenceRun::kEnding) return;
  if (status.ok()) status = run->constraint_status();
  const SequenceEnd end = run->make_end(status);
  if (run->leads() && status.ok()) start_followers(run);
  const RequestId id = run->request();
  OpenRequest& request = requests_.at(id);
  const bool admitted = request.admitted;
  if (run->state() == SequenceRun::kHeld) {
    admission_.end_held();
  } else if (admitted) {
    admission_.give_slot(*run);
  }
  page_queue_.erase(run);
  admission_.leave(run);
  dispatcher_.count_sequence(run->spec(), -1);
  run->enter(SequenceRun::kEnding);
  for (const TimePoint t :
       {admission_.queue_end(run->spec()), run->spec().deadline, run->spec().time_limit}) {
    timers_.drop(t, run->id());
  }
  readers_.forget(run);
  run->gate().close();
  dispatcher_.remove(run);
  ready_.purge(run);
  run->drop_frame();
  if (!mutated(Mutation::kLeakRun) || !run->ended()) ending_.push_back(run);
  std::erase(request.choices, run);
  std::erase(request.following, run);
  if (run->id() == id || !status.ok()) request.end = end;
  if (run->spec().series) run->spec().series->add_method_stats(end.stats);
  if (TextHistory* const history = run->spec().history.get(); history != nullptr && status.ok()) {
    history->add(run->spec().salt, run->tokens());
  }
  SequenceRun* const next = request.choices.empty() ? nullptr : request.choices.front();
  if (!next) {
    if (admitted) admission_.served(now());
    requests_.close(id, run->spec(), now());
  }
  if (!mutated(Mutation::kLostEnd) || admitted) run->spec().listener->on_end(end);
  if (mutated(Mutation::kEndTwice) && absl::IsCancelled(status)) run->spec().listener->on_end(end);
  if (next && !status.ok())
    this->end(next, std::move(status));  // a failed choice fails the request
}

bool Loop::release_ended() {
  if (ending_.empty()) return false;
  bool any = false;
  std::erase_if(ending_, [&](SequenceRun* run) {
    if (!run->gate().empty() && !mutated(Mutation::kFreeUnderPass)) return false;
    if (mutated(Mutation::kLateRelease) && admission_.running() > 0) return false;
    // The last run waits for copies, so that no device is busy when no run is left.
    if (runs_.size() == 1 && copies(dispatcher_)) return false;
    forget_values(run);
    run->release();
    runs_.erase(run->id());
    live_.fetch_sub(1);
    any = true;
    return true;
  });
  return any;
}

// True: models were removed.
bool Loop::remove_unused_models() {
  if (removals_.empty()) return dispatcher_.advance_removals();
  std::erase_if(removals_, [this](Inbox::RemoveModels& removal) {
    const auto removed = [&](ModelId m) {
      return std::ranges::find(removal.models, m) != removal.models.end();
    };
    for (const auto& [id, run] : runs_) {
      for (const CastRole& role : run->spec().roles()) {
        if (std::ranges::any_of(dispatcher_.replicas(role.model), removed)) return false;
      }
    }
    dispatcher_.remove_models(std::move(removal.models), std::move(removal.done));
    return true;
  });
  return dispatcher_.advance_removals();
}

void Loop::refuse(const std::vector<SequenceSpec>& choices, const absl::Status& status,
                  RejectReason reason) {
  requests_.refuse(choices.front(), status, reason);
  SequenceEnd end;
  end.status = status;
  end.prompt_tokens = choices.front().prompt_tokens();
  for (const SequenceSpec& spec : choices) spec.listener->on_end(end);
}

// --- Services

ModelLoad Loop::load(ModelId model) const {
  ModelLoad load = dispatcher_.load(model);
  load.sequences = std::min(load.sequences, limits_.max_running);
  return load;
}

void Loop::prefix_looked_up(int64_t rows, int64_t found) {
  metrics_->prefix_cache_queries.add(rows);
  metrics_->prefix_cache_hits.add(found);
}

std::string Loop::check_pages() const {
  std::vector<const SequenceRun*> runs;
  for (const auto& [id, run] : runs_) runs.push_back(run.get());
  return dispatcher_.check_pages(runs);
}

void Loop::update_gauges() {
  metrics_->requests_waiting.set(static_cast<double>(admission_.waiting()));
  retry_hint_.store(admission_.retry_hint(now()).count());
  dispatcher_.update_gauges();
}

}  // namespace tandem
