#include "engine/sched/loop.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"

namespace tandem {

Loop::Loop(LoopOptions options, const Clock* clock, std::vector<Backend*> devices,
           const std::vector<LoopModel>& models, Metrics* metrics)
    : options_(std::move(options)), clock_(clock), metrics_(metrics), waiting_(options_.limits) {
  if (options_.shuffle) ready_.shuffle(*options_.shuffle);
  BatchLimits limits;
  limits.step_rows = options_.limits.step_rows;
  limits.chunk_rows = options_.limits.prefill_chunk_rows;
  limits.works = options_.limits.max_running;
  lanes_.reserve(devices.size());  // lanes do not move: pools hold their move logs
  for (size_t d = 0; d < devices.size(); ++d) {
    lanes_.emplace_back(DeviceId(static_cast<int64_t>(d)), devices[d], limits, options_.log_frees);
  }
  for (const LoopModel& m : models) {
    TANDEM_CHECK(m.id.index() == models_.size());
    Lane& lane = lanes_[m.device.index()];
    Backend* backend = lane.backend();
    models_.push_back({std::make_unique<ModelPools>(m.id, backend->shape(m.id), backend->pool(m.id),
                                                    lane.moves()),
                       m.device, m.series});
  }
  update_gauges();
}

Loop::~Loop() {
  for (const Lane& lane : lanes_) TANDEM_CHECK(lane.idle());
}

// --- From other threads

void Loop::submit(SequenceSpec spec) {
  live_.fetch_add(1);
  post(std::make_unique<SequenceSpec>(std::move(spec)));
}

void Loop::stop(RequestId id, absl::Status status) { post(Stop{id, std::move(status)}); }
void Loop::stop_all(absl::Status status) { post(Stop{0, std::move(status)}); }

// Notified under the lock: what is posted may be the last thing that keeps the loop alive.
void Loop::post(Message message) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.push_back(std::move(message));
  inbox_filled_.notify_one();
}

void Loop::quit() {
  const std::lock_guard lock(inbox_mutex_);
  quit_ = true;
  inbox_filled_.notify_one();
}

// --- Steps

void Loop::run() {
  for (;;) {
    const bool progress = step();
    std::unique_lock lock(inbox_mutex_);
    if (quit_) return;
    if (progress || !inbox_.empty()) continue;
    const auto filled = [this] { return quit_ || !inbox_.empty(); };
    const TimePoint timer = next_timer();
    if (timer == kNever) {
      inbox_filled_.wait(lock, filled);
    } else {
      inbox_filled_.wait_for(lock, timer - now(), filled);
    }
  }
}

bool Loop::step() {
  bool progress = take_inbox();
  progress |= fire_timers();
  for (bool again = true; again; progress |= again) {
    again = admit();
    again |= grant_pages();
    again |= resume_ready();
    again |= reap();
  }
  progress |= launch();
  if (progress) update_gauges();
  return progress;
}

bool Loop::take_inbox() {
  std::vector<Message> messages;
  {
    const std::lock_guard lock(inbox_mutex_);
    messages.swap(inbox_);
  }
  for (Message& m : messages) {
    if (auto* spec = std::get_if<std::unique_ptr<SequenceSpec>>(&m)) {
      on_submit(std::move(*spec));
    } else if (auto* stop = std::get_if<Stop>(&m)) {
      on_stop(*stop);
    } else {
      on_batch_done(std::move(std::get<BatchDone>(m)));
    }
  }
  return !messages.empty();
}

void Loop::on_submit(std::unique_ptr<SequenceSpec> spec) {
  RejectReason reason = RejectReason::kTooLarge;
  absl::Status status = can_ever_fit(*spec);
  if (status.ok()) status = waiting_.check(static_cast<int64_t>(spec->prompt.size()), &reason);
  if (!status.ok()) {
    refuse(*spec, status, reason);
    live_.fetch_sub(1);
    return;
  }
  const RequestId id = spec->id;
  RunHost* host = this;
  auto run = std::make_unique<SequenceRun>(std::move(*spec), next_order_++, host);
  for (const TimePoint t : {queue_end(*run), run->spec().deadline, run->spec().time_limit}) {
    if (t != kNever) timers_.emplace(t, id);
  }
  waiting_.push(run.get());
  const bool fresh = runs_.emplace(id, std::move(run)).second;
  TANDEM_CHECK(fresh);
}

void Loop::on_stop(const Stop& stop) {
  if (stop.id != 0) {
    const auto it = runs_.find(stop.id);
    if (it == runs_.end()) return;
    it->second->end_with(FinishReason::kCancelled);
    end(it->second.get(), stop.status);
    return;
  }
  for (const auto& [id, run] : runs_) {
    run->end_with(FinishReason::kCancelled);
    end(run.get(), stop.status);
  }
}

TimePoint Loop::queue_end(const SequenceRun& run) const {
  return run.spec().submitted + Duration(static_cast<int64_t>(options_.limits.queue_seconds * 1e9));
}

void Loop::drop_timer(TimePoint when, RequestId id) {
  const auto it = timers_.find({when, id});
  if (it != timers_.end()) timers_.erase(it);
}

bool Loop::fire_timers() {
  bool fired = false;
  while (!timers_.empty() && timers_.begin()->first <= now()) {
    const RequestId id = timers_.begin()->second;
    timers_.erase(timers_.begin());
    fired = true;
    SequenceRun* run = runs_.at(id).get();  // end() takes a request's timers away
    if (run->spec().deadline <= now()) {
      end(run, absl::DeadlineExceededError("the request's deadline passed"));
    } else if (run->spec().time_limit <= now()) {
      run->end_with(FinishReason::kTimeLimit);
      end(run, absl::OkStatus());
    } else if (run->state == SequenceRun::kWaiting && queue_end(*run) <= now()) {
      metrics_->rejected[static_cast<size_t>(RejectReason::kQueueTime)].add();
      end(run, absl::ResourceExhaustedError(absl::StrCat(
                   "waited ", seconds(now() - run->spec().submitted), " s in the queue; allowed: ",
                   options_.limits.queue_seconds, " s (limits.queue_seconds); try again later")));
    }
  }
  return fired;
}

TimePoint Loop::next_timer() const { return timers_.empty() ? kNever : timers_.begin()->first; }

// --- Admission and pages

absl::Status Loop::can_ever_fit(const SequenceSpec& spec) const {
  const auto rows = static_cast<int64_t>(spec.prompt.size()) + spec.stops.max_new_tokens;
  for (const RoleModel& role : spec.roles) {
    const ModelPools& pools = *models_[role.model.index()].pools;
    // Evicted caches are filled again one by one, without the pages that forks shared.
    const int64_t room = pools.kv.total() / spec.width * pools.page_rows;
    if (rows > room) {
      const std::string times =
          spec.width > 1 ? absl::StrCat(" in each of ", spec.width, " beams") : "";
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt tokens + max_new_tokens: ", spec.prompt.size(), " + ", spec.stops.max_new_tokens,
          times, "; allowed: at most ", room, " together, the KV memory of the model"));
    }
  }
  return absl::OkStatus();
}

bool Loop::fits_now(const SequenceRun& run) {
  if (running_ == 0) return true;
  if (running_ >= options_.limits.max_running || page_queue_.holds_up(run)) return false;
  return std::all_of(run.spec().roles.begin(), run.spec().roles.end(), [&](const RoleModel& role) {
    const ModelPools& pools = *models_[role.model.index()].pools;
    const auto rows = static_cast<int64_t>(run.spec().prompt.size()) + 1;
    return (rows + pools.page_rows - 1) / pools.page_rows <= pools.kv.free();
  });
}

bool Loop::admit() {
  bool any = false;
  while (!waiting_.empty() && fits_now(*waiting_.front())) {
    SequenceRun* run = waiting_.front();
    waiting_.erase(run);
    run->state = SequenceRun::kRunning;
    run->admitted_at = now();
    drop_timer(queue_end(*run), run->id());
    ++running_;
    if (Series* s = run->spec().series) {
      s->requests_running.add(1);
      s->prompt_tokens.add(static_cast<int64_t>(run->spec().prompt.size()));
      s->queue_time.observe(seconds(now() - run->spec().submitted));
    }
    run->spec().listener->on_admitted();
    // The first await is its first round, so it takes its pages before the next one is looked at.
    run->start().resume();
    after_resume(run);
    any = true;
  }
  return any;
}

bool Loop::ask_pages(SequenceRun* run) {
  if (run->flights == 0) forget_values(run);  // else passes under way may still read them
  return page_queue_.ask(run);
}

bool Loop::grant_pages() {
  const PageQueue::Served served = page_queue_.serve(
      [this](const SequenceRun& run, const std::vector<const ModelPools*>& pools) {
        return std::any_of(runs_.begin(), runs_.end(), [&](const auto& entry) {
          return entry.second.get() != &run && entry.second->holds_pages_of(pools);
        });
      });
  metrics_->preemptions.add(served.evicted);
  for (SequenceRun* run : served.granted) ready_.push(run->take_waiter(), run->id());
  for (SequenceRun* run : served.hopeless) {
    end(run, absl::ResourceExhaustedError(
                 "the request needs more KV memory than its model has (kv_pages)"));
  }
  return !served.granted.empty() || !served.hopeless.empty() || served.evicted > 0;
}

// --- Coroutines and batches

bool Loop::resume_ready() {
  bool any = false;
  while (const auto entry = ready_.pop()) {
    any = true;
    SequenceRun* run = runs_.at(entry->owner).get();
    entry->waiter.resume();
    after_resume(run);
  }
  return any;
}

void Loop::after_resume(SequenceRun* run) {
  if (run->method_done()) end(run, absl::OkStatus());
}

void Loop::enqueue(std::shared_ptr<PassFlight> flight) {
  Lane& lane = lanes_[flight->device.index()];
  lane.enqueue(std::move(flight));
}

void Loop::order_moves(ModelId first, ModelId then) {
  const DeviceId a = device_of(first), b = device_of(then);
  if (a != b) lanes_[b.index()].wait_for(lanes_[a.index()]);
}

bool Loop::available(TicketId ticket) const {
  const auto it = values_.find(ticket);
  return it != values_.end() && it->second.done;
}

bool Loop::launch() {
  bool any = false;
  for (Lane& lane : lanes_) {
    if (!lane.idle() || !lane.has_work()) continue;
    const Batch* batch = lane.next([this](TicketId ticket) { return available(ticket); }, now());
    if (!batch) continue;
    for (const auto& flight : lane.running().flights) {
      if (flight->leaves_values) values_[flight->id] = {lane.device(), false};
    }
    ModelSeries* series = nullptr;  // none for a batch of moves alone
    if (!batch->works.empty()) series = models_[batch->works.front().model.index()].series;
    if (series) {
      series->batches.add();
      series->batch_rows.observe(batch->run_rows());
    }
    any = true;
    const DeviceId device = lane.device();
    lane.backend()->launch(
        *batch, [this, device](BatchResult result) { post(BatchDone{device, std::move(result)}); });
  }
  return any;
}

void Loop::on_batch_done(BatchDone done) {
  Lane& lane = lanes_[done.device.index()];
  BatchResult& result = done.result;
  if (absl::IsResourceExhausted(result.status) && lane.retry_smaller()) return;
  const std::unique_ptr<Lane::Running> batch = lane.finish();
  const int rows = batch->batch.run_rows();
  TANDEM_CHECK(!result.status.ok() || result.works.size() == batch->flights.size());
  std::vector<std::pair<SequenceRun*, absl::Status>> failed;
  for (size_t i = 0; i < batch->flights.size(); ++i) {
    PassFlight& flight = *batch->flights[i];
    const Work& work = batch->batch.works[i];
    SequenceRun* run = flight.sequence;
    if (run->state == SequenceRun::kEnding) continue;
    const absl::Status status = result.status.ok() ? result.works[i].status : result.status;
    if (!status.ok()) {
      failed.emplace_back(run, status);
      continue;
    }
    run->account_chunk(flight, rows, result.busy, work.last);
    if (ModelSeries* series = models_[work.model.index()].series; series && work.last) {
      series->passes[static_cast<size_t>(run->role_of(flight))].add();
    }
    absorb(flight, work, std::move(result.works[i].readout));
    if (work.last) finish_flight(flight);
  }
  for (const auto& [run, status] : failed) end(run, status);
}

void Loop::finish_flight(PassFlight& flight) {
  SequenceRun* run = flight.sequence;
  flight.done = true;
  run->flight_done(flight);
  if (const auto it = values_.find(flight.id); it != values_.end()) it->second.done = true;
  if (flight.waiter) ready_.push(flight.waiter, run->id());
}

void Loop::forget_values(SequenceRun* run) {
  for (const TicketId ticket : run->take_shared()) {
    const auto it = values_.find(ticket);
    if (it == values_.end()) continue;
    lanes_[it->second.device.index()].forget(ticket);
    values_.erase(it);
  }
}

// --- Ends

void Loop::end(SequenceRun* run, absl::Status status) {
  if (run->state == SequenceRun::kEnding) return;
  const SequenceEnd end = run->make_end(std::move(status));
  const bool admitted = run->state != SequenceRun::kWaiting;
  if (admitted) {
    --running_;
    page_queue_.erase(run);
  } else {
    waiting_.erase(run);
  }
  run->state = SequenceRun::kEnding;
  for (const TimePoint t : {queue_end(*run), run->spec().deadline, run->spec().time_limit}) {
    drop_timer(t, run->id());
  }
  run->gate.close();
  for (Lane& lane : lanes_) lane.remove(run);
  ready_.purge(run->id());
  run->drop_frame();
  ending_.push_back(run);
  if (Series* s = run->spec().series) {
    if (admitted) s->requests_running.add(-1);
    if (end.status.ok()) {
      s->finished[static_cast<size_t>(end.reason)].add();
    } else {
      s->failed[static_cast<size_t>(end.status.code())].add();
    }
    s->add_method_stats(end.stats);
    s->e2e_latency.observe(seconds(now() - run->spec().submitted));
    if (admitted) {
      s->prefill_time.observe(end.stats.prefill_seconds);
      s->decode_time.observe(end.stats.decode_seconds);
    }
    if (end.completion_tokens > 0 && end.stats.large_passes > 0) {
      s->tokens_per_pass.observe(static_cast<double>(end.completion_tokens) /
                                 static_cast<double>(end.stats.large_passes));
    }
  }
  run->spec().listener->on_end(end);
}

bool Loop::reap() {
  bool any = false;
  std::erase_if(ending_, [&](SequenceRun* run) {
    if (!run->gate.empty()) return false;
    forget_values(run);
    run->release();
    runs_.erase(run->id());
    live_.fetch_sub(1);
    any = true;
    return true;
  });
  return any;
}

void Loop::refuse(const SequenceSpec& spec, const absl::Status& status, RejectReason reason) {
  metrics_->rejected[static_cast<size_t>(reason)].add();
  if (spec.series) spec.series->failed[static_cast<size_t>(status.code())].add();
  SequenceEnd end;
  end.status = status;
  end.prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  spec.listener->on_end(end);
}

bool Loop::device_busy() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return !l.idle(); });
}

void Loop::update_gauges() {
  metrics_->requests_waiting.set(static_cast<double>(waiting_.size()));
  for (const Model& m : models_) {
    if (!m.series) continue;
    m.series->kv_pages_total.set(static_cast<double>(m.pools->kv.total()));
    m.series->kv_pages_used.set(static_cast<double>(m.pools->kv.used()));
  }
}

}  // namespace tandem
