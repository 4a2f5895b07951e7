#include "engine/sched/loop.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/planted.h"

namespace tandem {
namespace {

Duration duration(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace

Loop::Loop(LoopOptions options, const Clock* clock, std::vector<Backend*> devices,
           const std::vector<LoopModel>& models, Metrics* metrics)
    : options_(std::move(options)),
      clock_(clock),
      metrics_(metrics),
      ledger_({options_.limits.fair_prompt_weight, options_.limits.fair_token_weight,
               options_.limits.client_weights}),
      waiting_(options_.limits),
      page_queue_(options_.limits.preemption) {
  if (options_.shuffle) ready_.shuffle(*options_.shuffle);
  if (planted(Bug::kUnseededOrder)) {
    ready_.shuffle(static_cast<uint64_t>(SteadyClock().now().time_since_epoch().count()));
  }
  BatchLimits limits;
  limits.step_rows = options_.limits.step_rows;
  limits.chunk_rows = options_.limits.prefill_chunk_rows;
  limits.works = options_.limits.max_running;
  for (size_t d = 0; d < devices.size(); ++d) {
    lanes_.emplace_back(DeviceId(static_cast<int64_t>(d)), devices[d], limits, options_.log_frees);
  }
  for (const LoopModel& m : models) {
    TANDEM_CHECK(m.id.index() == models_.size());
    Lane& lane = lanes_[m.device.index()];
    Backend* backend = lane.backend();
    models_.push_back({std::make_unique<ModelPools>(m.id, backend->shape(m.id), backend->pool(m.id),
                                                    lane.moves(), m.prefix_cache),
                       m.device, m.series});
  }
  update_gauges();
}

Loop::~Loop() {
  for (const Lane& lane : lanes_) TANDEM_CHECK(lane.idle());
}

// --- From other threads

void Loop::submit(std::vector<SequenceSpec> choices) {
  live_.fetch_add(static_cast<int64_t>(choices.size()));
  post(std::move(choices));
}

void Loop::submit(SequenceSpec spec) {
  std::vector<SequenceSpec> choices;
  choices.push_back(std::move(spec));
  submit(std::move(choices));
}

void Loop::stop(RequestId id, absl::Status status) { post(Stop{id, std::move(status)}); }
void Loop::stop_all(absl::Status status) { post(Stop{0, std::move(status)}); }
void Loop::pause(RequestId id) { post(Pause{id, true}); }
void Loop::resume(RequestId id) { post(Pause{id, false}); }

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
      inbox_filled_.wait_for(lock, timer - clock_->now(), filled);
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
  now_ = clock_->now();  // not before anything that came in
  for (Message& m : messages) {
    if (auto* choices = std::get_if<std::vector<SequenceSpec>>(&m)) {
      on_submit(std::move(*choices));
    } else if (auto* stop = std::get_if<Stop>(&m)) {
      on_stop(*stop);
    } else if (auto* pause = std::get_if<Pause>(&m)) {
      on_pause(*pause);
    } else {
      on_batch_done(std::move(std::get<BatchDone>(m)));
    }
  }
  return !messages.empty();
}

void Loop::on_submit(std::vector<SequenceSpec> choices) {
  const SequenceSpec& first = choices.front();
  const auto n = static_cast<int>(choices.size());
  RejectReason reason = RejectReason::kTooLarge;
  absl::Status status = can_ever_fit(first, n);
  if (status.ok()) {
    reason = RejectReason::kDeviceLost;
    status = can_be_served(first);
  }
  if (status.ok()) {
    status = waiting_.check(static_cast<int64_t>(first.prompt.size()), &reason);
    if (!status.ok()) status = with_retry_hint(status, hint_.estimate(waiting_.size(), now()));
  }
  if (!status.ok()) {
    refuse(choices, status, reason);
    live_.fetch_sub(n);
    return;
  }
  const RequestId id = first.id;
  const auto [entry, fresh] = requests_.try_emplace(id);
  TANDEM_CHECK(fresh);
  Request& request = entry->second;
  request.account = ledger_.open(first.client);
  RunHost* host = this;
  for (SequenceSpec& spec : choices) {
    auto run = std::make_unique<SequenceRun>(std::move(spec), next_order_++, host);
    run->request = id;
    run->account = request.account;
    request.choices.push_back(run.get());
    for (const TimePoint t : {queue_end(*run), run->spec().deadline, run->spec().time_limit}) {
      set_timer(t, run->id());
    }
    const bool new_id = runs_.emplace(run->id(), std::move(run)).second;
    TANDEM_CHECK(new_id);
  }
  waiting_.push(request.choices.front());
}

void Loop::on_stop(const Stop& stop) {
  std::vector<SequenceRun*> all;
  if (stop.id != 0) {
    const auto request = requests_.find(stop.id);
    if (request != requests_.end()) all = request->second.choices;
  } else {
    for (const auto& [id, run] : runs_) all.push_back(run.get());
  }
  for (SequenceRun* run : all) {
    if (planted(Bug::kLostCancel) && run->flights > 0) continue;
    run->end_with(FinishReason::kCancelled);
    end(run, stop.status);
  }
}

void Loop::on_pause(const Pause& pause) {
  if (planted(Bug::kUnboundedReader)) return;
  const auto found = requests_.find(pause.id);
  if (found == requests_.end() || found->second.paused == pause.on) return;
  Request& request = found->second;
  request.paused = pause.on;
  metrics_->requests_paused.add(pause.on ? 1 : -1);
  for (SequenceRun* run : request.choices) {
    run->reader_waits = pause.on;
    if (pause.on) {
      run->stalled_at = now() + duration(options_.limits.stalled_stream_seconds);
      set_timer(run->stalled_at, run->id());
      if (run->state != SequenceRun::kPaused) continue;  // its next round notices
      page_queue_.erase(run);
      hold(run);
    } else {
      drop_timer(std::exchange(run->stalled_at, kNever), run->id());
      if (run->state == SequenceRun::kHeld) let_go_on(run);
    }
  }
}

TimePoint Loop::queue_end(const SequenceRun& run) const {
  return run.spec().submitted + duration(options_.limits.queue_seconds);
}

void Loop::set_timer(TimePoint when, RequestId id) {
  if (when != kNever) timers_.emplace(when, id);
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
      end(run, with_retry_hint(absl::ResourceExhaustedError(absl::StrCat(
                                   "waited ", seconds(now() - run->spec().submitted),
                                   " s in the queue; ", "allowed: ", options_.limits.queue_seconds,
                                   " s (limits.queue_seconds); try again later")),
                               hint_.estimate(waiting_.size(), now())));
    } else if (run->stalled_at <= now()) {
      end(run, absl::ResourceExhaustedError(absl::StrCat(
                   "the client reads too slowly: what it was sent lies unread for ",
                   options_.limits.stalled_stream_seconds, " s (limits.stalled_stream_seconds)")));
    } else if (run->held_until <= now()) {
      run->held_until = kNever;
      if (run->flights == 0 && run->holds_pages()) {
        run->evict();
        metrics_->preemptions.add();
      }
    }
  }
  return fired;
}

TimePoint Loop::next_timer() const { return timers_.empty() ? kNever : timers_.begin()->first; }

// --- Admission

// Any sequence comes to its pages when it is the first that waits for them and nobody else needs
// its own: so what must fit is one choice alone, at its longest.
absl::Status Loop::can_ever_fit(const SequenceSpec& spec, int choices) const {
  if (choices > options_.limits.max_running) {
    return absl::InvalidArgumentError(absl::StrCat("n: ", choices, "; allowed: at most ",
                                                   options_.limits.max_running,
                                                   " (limits.max_running)"));
  }
  const int64_t rows =
      static_cast<int64_t>(spec.prompt.size()) + spec.stops.max_new_tokens + spec.extra_rows;
  const auto too_large = [&](int64_t room, absl::string_view of) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt tokens + max_new_tokens: ", spec.prompt.size(), " + ", spec.stops.max_new_tokens,
        spec.extra_rows > 0 ? absl::StrCat(" (and ", spec.extra_rows, " rows for guesses)") : "",
        spec.width > 1 ? absl::StrCat(" in each of ", spec.width, " beams") : "",
        "; allowed: at most ", room, " together, ", of));
  };
  for (const RoleModel& role : spec.roles) {
    const ModelPools& pools = *models_[role.model.index()].pools;
    // Evicted caches are filled again one by one, without the pages that forks shared.
    const int64_t room = pools.kv.total() / spec.width * pools.page_rows;
    if (rows > room) return too_large(room, "the KV memory of the model");
    // Until the rest of the layers takes them over, all rows may lie between two layers: at first,
    // and when the sequence resumes after it lost its pages.
    const int64_t frontier_room = pools.frontier.total() * pools.page_rows;
    if (role.to > 0 && role.to < pools.layers && rows > frontier_room) {
      return too_large(frontier_room, "the model's memory for rows between two layers");
    }
  }
  return absl::OkStatus();
}

absl::Status Loop::can_be_served(const SequenceSpec& spec) const {
  for (const RoleModel& role : spec.roles) {
    if (lanes_[models_[role.model.index()].device.index()].lost()) {
      return absl::UnavailableError("the model's device is lost; try another server");
    }
  }
  return absl::OkStatus();
}

// Who stands still for its reader needs no slot; but so many that they would be a queue do.
int Loop::slots_used() const { return running_ + std::max(0, held_ - options_.limits.max_waiting); }

void Loop::count_running(const SequenceRun& run, int by) {
  running_ += by;
  const auto& roles = run.spec().roles;
  for (size_t i = 0; i < roles.size(); ++i) {
    const auto same = [&](const RoleModel& r) { return r.model == roles[i].model; };
    if (std::any_of(roles.begin(), roles.begin() + static_cast<ptrdiff_t>(i), same)) continue;
    models_[roles[i].model.index()].running += by;
  }
}

bool Loop::admit() {
  bool any = false;
  for (bool again = !waiting_.empty(); again;) {
    again = false;
    std::vector<const SequenceRun*> blocked;
    for (SequenceRun* run : waiting_.heads()) {
      const auto n = static_cast<int>(requests_.at(run->request).choices.size());
      if (slots_used() + n > options_.limits.max_running && !planted(Bug::kIgnoreMaxRunning)) {
        break;  // for all lines: no overtaking
      }
      const bool behind = std::any_of(blocked.begin(), blocked.end(), [run](const SequenceRun* b) {
        return b->shares_pools_with(*run);
      });
      if (behind || !has_room(*run, n)) {
        blocked.push_back(run);
        continue;
      }
      let_in(run);
      any = again = true;  // and whose turn it is has changed
      break;
    }
  }
  if (waiting_.empty()) hint_.idle();
  return any;
}

bool Loop::has_room(const SequenceRun& run, int choices) {
  if (page_queue_.holds_up(run)) return false;
  for (;;) {
    std::vector<const ModelPools*> lacking;
    bool used = false;
    for (const RoleModel& role : run.spec().roles) {
      const Model& model = models_[role.model.index()];
      const int page_rows = model.pools->page_rows;
      const auto rows = static_cast<int64_t>(run.spec().prompt.size()) + 1;
      int64_t pages = (rows + page_rows - 1) / page_rows + choices - 1;
      const int64_t available = model.pools->kv.available();
      if (pages > available) pages = run.first_pages(*model.pools) + choices - 1;
      used |= model.running > 0;
      if (pages > available) lacking.push_back(model.pools.get());
    }
    if (lacking.empty()) return true;
    if (!page_queue_.evict_held(lacking)) return !used;  // if nobody is there, all comes back
    metrics_->preemptions.add();
  }
}

void Loop::let_in(SequenceRun* first) {
  Request& request = requests_.at(first->request);
  waiting_.erase(first);
  request.admitted = true;
  ledger_.admit(request.account);
  ledger_.charge_prompt(request.account, static_cast<int64_t>(first->spec().prompt.size()));
  for (SequenceRun* run : request.choices) {
    run->state = run == first ? SequenceRun::kRunning : SequenceRun::kFollowing;
    run->admitted_at = now();
    drop_timer(queue_end(*run), run->id());
    count_running(*run, 1);
    run->spec().listener->on_admitted();
  }
  request.following.assign(request.choices.begin() + 1, request.choices.end());
  first->leads = !request.following.empty();
  if (Series* s = first->spec().series) {
    s->requests_running.add(1);
    s->prompt_tokens.add(static_cast<int64_t>(first->spec().prompt.size()));
    s->queue_time.observe(seconds(now() - first->spec().submitted));
  }
  // The first await is its first round, so it takes its pages before the next one is looked at.
  first->start().resume();
  after_resume(first);
}

// The other choices begin with the rows of the prompt that the first one has in memory: all, unless
// it ends before its time.
void Loop::start_followers(SequenceRun* leader) {
  leader->leads = false;
  for (SequenceRun* run : std::exchange(requests_.at(leader->request).following, {})) {
    run->state = SequenceRun::kRunning;
    const std::coroutine_handle<> begin = run->start();
    run->take_over(*leader);
    ready_.push(begin, run->id());
  }
}

void Loop::prefix_looked_up(int64_t rows, int64_t found) {
  metrics_->prefix_cache_queries.add(rows);
  metrics_->prefix_cache_hits.add(found);
}

void Loop::tokens_emitted(SequenceRun* run, int64_t count) {
  ledger_.charge_tokens(run->account, count);
}

// --- Pages

// It has no slot from here on, and what others need of its pages goes to them.
void Loop::hold(SequenceRun* run) {
  page_queue_.hold(run);
  count_running(*run, -1);
  ++held_;
  run->held_until = now() + duration(options_.limits.slow_reader_hold_seconds);
  set_timer(run->held_until, run->id());
}

void Loop::let_go_on(SequenceRun* run) {
  page_queue_.erase(run);
  count_running(*run, 1);
  --held_;
  drop_timer(std::exchange(run->held_until, kNever), run->id());
  if (!page_queue_.ask(run)) return;
  run->state = SequenceRun::kRunning;
  ready_.push(run->take_waiter(), run->id());
}

bool Loop::ask_pages(SequenceRun* run) {
  if (run->flights == 0) forget_values(run);  // else passes under way may still read them
  if (run->leads && run->flights == 0 && run->first_token_at != kNever) start_followers(run);
  if (run->reader_waits) {
    hold(run);
    return false;
  }
  return page_queue_.ask(run);
}

bool Loop::grant_pages() {
  const PageQueue::Served served = page_queue_.serve(
      [this](const SequenceRun& run, const std::vector<const ModelPools*>& pools) {
        return std::any_of(runs_.begin(), runs_.end(), [&](const auto& entry) {
          const SequenceRun& other = *entry.second;
          const bool waits = other.state == SequenceRun::kPaused && other.flights == 0;
          return &other != &run && !waits && other.holds_pages_of(pools);
        });
      });
  if (!planted(Bug::kHiddenPreemption)) metrics_->preemptions.add(served.evicted);
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
    if (planted(Bug::kRealTime) && SteadyClock().now().time_since_epoch().count() / 512 % 2 == 0) {
      continue;
    }
    if (lane.lost() || !lane.idle() || !lane.has_work()) continue;
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
  const bool lost = absl::IsUnavailable(result.status);
  if (lost) lane.lose();
  std::unique_ptr<Lane::Running> batch = lane.finish();
  const int rows = batch->batch.run_rows();
  TANDEM_CHECK(!result.status.ok() || result.works.size() == batch->flights.size());
  std::vector<std::pair<SequenceRun*, absl::Status>> failed;
  for (size_t i = 0; i < batch->flights.size(); ++i) {
    PassFlight& flight = *batch->flights[i];
    const Work& work = batch->batch.works[i];
    SequenceRun* run = flight.sequence;
    if (run->state == SequenceRun::kEnding) continue;
    absl::Status status = result.status.ok() ? result.works[i].status : result.status;
    if (planted(Bug::kFaultSpreads) && result.status.ok()) {
      for (const WorkResult& w : result.works) status.Update(w.status);
    }
    if (planted(Bug::kNanAccepted) && result.status.ok() && !status.ok()) {
      status = absl::OkStatus();
      result.works[i].readout.row.resize(work.outputs.size());
      for (Out& out : result.works[i].readout.row) out.token = out.argmax = 0;
    }
    if (!status.ok()) {
      failed.emplace_back(run, status);
      continue;
    }
    const Role role = run->account_chunk(flight, rows, result.busy, work.last);
    if (ModelSeries* series = models_[work.model.index()].series; series && work.last) {
      series->passes[static_cast<size_t>(role)].add();
    }
    absorb(flight, work, std::move(result.works[i].readout));
    if (work.last) finish_flight(flight);
  }
  for (const auto& [run, status] : failed) end(run, status);
  lane.recycle(std::move(batch));
  if (lost) end_all_on(done.device, result.status);
}

void Loop::end_all_on(DeviceId device, const absl::Status& status) {
  std::vector<SequenceRun*> hit;
  for (const auto& [id, run] : runs_) {
    const auto& roles = run->spec().roles;
    if (std::any_of(roles.begin(), roles.end(),
                    [&](const RoleModel& r) { return device_of(r.model) == device; })) {
      hit.push_back(run.get());
    }
  }
  for (SequenceRun* run : hit) end(run, status);
}

void Loop::finish_flight(PassFlight& flight) {
  SequenceRun* run = flight.sequence;
  flight.done = true;
  run->flight_done(flight);
  if (const auto it = values_.find(flight.id); it != values_.end()) it->second.done = true;
  if (planted(Bug::kLostWaiter) && flight.id % 97 == 0) return;
  if (flight.waiter) ready_.push(flight.waiter, run->id());
}

void Loop::forget_values(SequenceRun* run) {
  for (const TicketId ticket : run->take_shared()) {
    if (planted(Bug::kLeakValues)) continue;
    const auto it = values_.find(ticket);
    if (it == values_.end()) continue;
    lanes_[it->second.device.index()].forget(ticket);
    values_.erase(it);
  }
}

// --- Ends

void Loop::end(SequenceRun* run, absl::Status status) {
  if (run->state == SequenceRun::kEnding) return;
  const SequenceEnd end = run->make_end(status);
  if (run->leads && status.ok()) start_followers(run);
  const auto found = requests_.find(run->request);
  Request& request = found->second;
  [[maybe_unused]] const bool admitted = request.admitted;
  if (run->state == SequenceRun::kHeld) {
    --held_;
  } else if (request.admitted) {
    count_running(*run, -1);
  }
  page_queue_.erase(run);
  waiting_.erase(run);
  run->state = SequenceRun::kEnding;
  for (const TimePoint t : {queue_end(*run), run->spec().deadline, run->spec().time_limit,
                            run->held_until, run->stalled_at}) {
    drop_timer(t, run->id());
  }
  run->gate.close();
  for (Lane& lane : lanes_) lane.remove(run);
  ready_.purge(run->id());
  run->drop_frame();
  if (!planted(Bug::kLeakRun) || !run->ended()) ending_.push_back(run);
  std::erase(request.choices, run);
  std::erase(request.following, run);
  if (run->id() == run->request || !status.ok()) request.end = end;
  if (run->spec().series) run->spec().series->add_method_stats(end.stats);
  if (request.choices.empty()) end_request(found->first, request, run->spec());
  if (!planted(Bug::kLostEnd) || admitted) run->spec().listener->on_end(end);
  if (planted(Bug::kEndTwice) && absl::IsCancelled(status)) run->spec().listener->on_end(end);
  // One that fails takes the others with it.
  const auto others = requests_.find(run->request);
  if (!status.ok() && others != requests_.end()) {
    this->end(others->second.choices.front(), std::move(status));
  }
}

// Counts a request, whatever the number of its choices, and forgets it.
void Loop::end_request(RequestId id, const Request& request, const SequenceSpec& spec) {
  ledger_.close(request.account, !request.admitted);
  if (request.paused) metrics_->requests_paused.add(-1);
  if (request.admitted && !waiting_.empty()) hint_.served(now());
  if (Series* s = spec.series) {
    const SequenceEnd& end = request.end;
    if (request.admitted && (!planted(Bug::kGaugeStays) || end.status.ok())) {
      s->requests_running.add(-1);
    }
    if (end.status.ok()) {
      s->finished[static_cast<size_t>(end.reason)].add();
    } else {
      s->failed[static_cast<size_t>(end.status.code())].add();
    }
    s->e2e_latency.observe(seconds(now() - spec.submitted));
    if (request.admitted) {
      s->prefill_time.observe(end.stats.prefill_seconds);
      s->decode_time.observe(end.stats.decode_seconds);
    }
    if (end.completion_tokens > 0 && end.stats.large_passes > 0) {
      s->tokens_per_pass.observe(static_cast<double>(end.completion_tokens) /
                                 static_cast<double>(end.stats.large_passes));
    }
  }
  requests_.erase(id);
}

bool Loop::reap() {
  bool any = false;
  std::erase_if(ending_, [&](SequenceRun* run) {
    if (!run->gate.empty() && !planted(Bug::kFreeUnderPass)) return false;
    if (planted(Bug::kLateRelease) && running_ > 0) return false;
    forget_values(run);
    run->release();
    runs_.erase(run->id());
    live_.fetch_sub(1);
    any = true;
    return true;
  });
  return any;
}

void Loop::refuse(const std::vector<SequenceSpec>& choices, const absl::Status& status,
                  RejectReason reason) {
  metrics_->rejected[static_cast<size_t>(reason)].add();
  const SequenceSpec& first = choices.front();
  if (first.series) first.series->failed[static_cast<size_t>(status.code())].add();
  SequenceEnd end;
  end.status = status;
  end.prompt_tokens = static_cast<int64_t>(first.prompt.size());
  for (const SequenceSpec& spec : choices) spec.listener->on_end(end);
}

bool Loop::device_busy() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return !l.idle(); });
}

std::string Loop::check_pages() const {
  for (const Model& m : models_) {
    std::vector<const SequenceCache*> caches;
    for (const auto& [id, run] : runs_) run->add_caches_of(*m.pools, &caches);
    std::string wrong = m.pools->check(caches);
    if (!wrong.empty()) return absl::StrCat("model ", m.pools->model.value, ": ", wrong);
  }
  return "";
}

void Loop::update_gauges() {
  metrics_->requests_waiting.set(static_cast<double>(waiting_.size()));
  retry_hint_.store(hint_.estimate(waiting_.size(), now()).count());
  for (const Model& m : models_) {
    if (!m.series) continue;
    m.series->kv_pages_total.set(static_cast<double>(m.pools->kv.total()));
    m.series->kv_pages_used.set(static_cast<double>(m.pools->kv.used()));
    m.series->kv_pages_cached.set(static_cast<double>(m.pools->kv.cached()));
  }
}

}  // namespace tandem
