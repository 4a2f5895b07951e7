#include "engine/sched/dispatcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// The number of requests with passes in the batch.
int requests_of(const DeviceScheduler::LaunchedBatch& batch) {
  std::vector<RequestId> ids;
  ids.reserve(batch.flights.size());
  for (const PassFlight* f : batch.flights) ids.push_back(f->sequence->request());
  std::ranges::sort(ids);
  return static_cast<int>(std::ranges::unique(ids).begin() - ids.begin());
}

DeviceScheduler::End end_of(const WorkResult& w) {
  using End = DeviceScheduler::End;
  if (w.late != nullptr) return End::kLate;
  return !w.status.ok() && absl::IsAborted(w.status) ? End::kPutOff : End::kDone;
}

bool is_done(const WorkResult& w) { return end_of(w) == DeviceScheduler::End::kDone; }

absl::Status lost_device_error() {
  return with_reason(absl::UnavailableError("the model's device is lost; try another server"),
                     "DEVICE_LOST");
}

}  // namespace

Dispatcher::Dispatcher(const std::vector<Backend*>& devices, const std::vector<LoopModel>& models,
                       const BatchLimits& limits, bool log_frees, Counter* copied, Done done,
                       LateDone late_done)
    : copied_(copied), done_(std::move(done)), late_done_(std::move(late_done)) {
  for (size_t d = 0; d < devices.size(); ++d) {
    schedulers_.emplace_back(DeviceId(static_cast<int64_t>(d)), devices[d], limits, log_frees);
  }
  add_models(models);
}

void Dispatcher::add_models(const std::vector<LoopModel>& models) {
  for (const LoopModel& m : models) {
    TANDEM_CHECK(!has_model(m.id));
    if (m.id.index() >= models_.size()) models_.resize(m.id.index() + 1);
    DeviceScheduler& scheduler = schedulers_[m.device.index()];
    Backend* const backend = scheduler.backend();
    models_[m.id.index()] = {
        std::make_unique<ModelPools>(m.id, backend->shape(m.id), backend->pool(m.id),
                                     scheduler.moves(), m.prefix_cache),
        m.device, m.series, &backend->shape(m.id), m.replica_of.valid() ? m.replica_of : m.id};
    models_[m.id.index()].replicas = {m.id};
    models_[m.id.index()].pools->prefixes.listen(m.prefix_listener, m.name, m.instance);
  }
  for (const LoopModel& m : models) {
    if (!m.replica_of.valid()) continue;
    models_[m.replica_of.index()].replicas.push_back(m.id);
    has_replicas_ = true;
  }
}

void Dispatcher::remove_models(std::vector<ModelId> models, std::function<void()> done) {
  removals_.push_back({std::move(models), std::move(done)});
}

bool Dispatcher::remove_unused() {
  return std::erase_if(removals_, [this](PendingRemoval& removal) {
           if (!advance(removal)) return false;
           for (const ModelId m : removal.models) models_[m.index()] = {};
           removal.done();
           return true;
         }) > 0;
}

// True: no move of the models is left, also none that a lost device has not begun.
bool Dispatcher::advance(PendingRemoval& removal) {
  if (removal.ends.empty()) {
    for (const ModelId id : removal.models) {
      const ModelPools& of = pools(id);
      if (of.kv.pinned() > 0 || std::ranges::any_of(transfers_, [&of](const PendingTransfer& t) {
            return t.transfer->source() == &of || t.transfer->target() == &of;
          })) {
        return false;
      }
    }
    for (const ModelId id : removal.models) {
      DeviceScheduler& scheduler = scheduler_of(pools(id));
      scheduler.flush(scheduler.log_end());
      removal.ends.emplace_back(&scheduler, scheduler.log_end());
    }
  }
  return std::ranges::all_of(removal.ends, [](const auto& end) {
    return end.first->made() >= end.second ||
           (end.first->lost() && end.first->launched() < end.second);
  });
}

void Dispatcher::count_sequence(const SequenceSpec& spec, int n) {
  for (const CastRole& role : spec.roles()) {
    if (role.role != Role::kLarge) continue;
    models_[models_[role.model.index()].original.index()].sequences += n;
  }
}

ModelLoad Dispatcher::load(ModelId model) const {
  const Model& m = models_[model.index()];
  const Model& original = models_[m.original.index()];
  const auto replicas = static_cast<int>(original.replicas.size());
  return {(original.sequences + replicas - 1) / replicas, &m.time};
}

bool Dispatcher::busy() const {
  return late_ > 0 || std::any_of(schedulers_.begin(), schedulers_.end(),
                                  [](const DeviceScheduler& l) { return !l.idle(); });
}

absl::Status Dispatcher::can_serve(const SequenceSpec& spec) const {
  const auto is_lost = [this](ModelId m) { return lost(device_of(m)); };
  for (const CastRole& role : spec.roles()) {
    if (spec.placed ? is_lost(role.model) : std::ranges::all_of(replicas(role.model), is_lost)) {
      return lost_device_error();
    }
  }
  return absl::OkStatus();
}

void Dispatcher::remove(const SequenceRun* run) {
  for (DeviceScheduler& scheduler : schedulers_) scheduler.remove(run);
}

void Dispatcher::forget(const PassFlight& flight) {
  if (mutated(Mutation::kLeakValues)) return;
  if (flight.begun) schedulers_[flight.device.index()].forget(flight.id);
}

int64_t Dispatcher::begin(std::shared_ptr<Transfer> transfer) {
  const int64_t bytes = bytes_from_elsewhere(transfer->moves());
  DeviceScheduler& source = scheduler_of(*transfer->source());
  DeviceScheduler& target = scheduler_of(*transfer->target());
  // On one device the log is in order already.
  const uint64_t after = &source == &target ? 0 : source.end_of_copies_to(transfer->moves());
  source.flush(after);
  transfers_.push_back({std::move(transfer), &source, &target, after});
  advance_transfers();
  return bytes;
}

// True: it is done, or abandoned because a device is lost.
bool Dispatcher::advance(PendingTransfer& t) {
  if (t.target->lost()) return true;
  if (t.transfer->state() == Transfer::kWaiting) {
    if (t.source->lost()) return true;
    if (!t.transfer->has_turn() || t.source->made() < t.after) return false;
    std::vector<Move>& log = *t.target->moves();
    log.insert(log.end(), t.transfer->moves().begin(), t.transfer->moves().end());
    t.end = t.target->log_end();
    t.target->flush(t.end);
    t.transfer->logged();
  }
  return t.target->made() >= t.end;
}

void Dispatcher::advance_transfers() {
  // In order: a transfer may follow earlier ones.
  std::erase_if(transfers_, [](PendingTransfer& t) {
    if (!advance(t)) return false;
    t.transfer->made();
    return true;
  });
}

// Pages need no pins: a page that is released and reused is written by later moves and batches.
void Dispatcher::read(PageRead read) {
  ModelPools& from = pools(read.model);
  DeviceScheduler& scheduler = scheduler_of(from);
  if (scheduler.lost()) return read.done(lost_device_error());
  const int64_t bytes = models_[read.model.index()].shape->page_bytes;
  std::vector<bool> found;
  for (const PrefixIndex::Name& name : read.pages) {
    found.push_back(from.prefixes.knows(name));
    if (found.back()) {
      Move save;
      save.kind = Move::kSave;
      save.from = {read.model, name.page, 0};
      save.host = read.to;
      from.moves->push_back(save);
    }
    read.to += bytes;
  }
  if (std::ranges::find(found, true) == found.end()) return read.done(std::move(found));
  scheduler.flush(scheduler.log_end());
  reads_.push_back({&scheduler, scheduler.log_end(), std::move(found), std::move(read.done)});
}

void Dispatcher::edit(PoolEdit edit) {
  ModelPools& of = pools(edit.model);
  DeviceScheduler& scheduler = scheduler_of(of);
  if (scheduler.lost()) return edit.done(lost_device_error());
  const uint64_t before = scheduler.log_end();
  edit.edit(of);
  if (scheduler.log_end() == before) return edit.done(absl::OkStatus());
  scheduler.flush(scheduler.log_end());
  reads_.push_back({&scheduler,
                    scheduler.log_end(),
                    {},
                    [done = std::move(edit.done)](const absl::StatusOr<std::vector<bool>>& made) {
                      done(made.status());
                    }});
}

// A batch of the device has ended, with `status`. The moves of a read are all in one batch, which
// a lost device may still run if it was launched before.
void Dispatcher::end_reads(const DeviceScheduler& scheduler, const absl::Status& status) {
  std::erase_if(reads_, [&](PendingRead& read) {
    if (read.scheduler != &scheduler) return false;
    const bool made = scheduler.made() >= read.end;
    if (!made && !(scheduler.lost() && scheduler.launched() < read.end)) return false;
    if (status.ok() && made) {
      read.done(std::move(read.found));
    } else {
      read.done(status.ok() ? lost_device_error() : status);
    }
    return true;
  });
}

bool Dispatcher::launch(TimePoint now) {
  bool any = false;
  for (DeviceScheduler& scheduler : schedulers_) {
    if (mutated(Mutation::kRealTime) &&
        SteadyClock().now().time_since_epoch().count() / 512 % 2 == 0) {
      continue;
    }
    while (!scheduler.lost() && scheduler.has_work()) {
      const DeviceScheduler::LaunchedBatch* const next = scheduler.next(now);
      if (!next) break;
      launch(scheduler, *next);
      any = true;
    }
  }
  return any;
}

// Bytes that moves bring from other devices.
int64_t Dispatcher::bytes_from_elsewhere(std::span<const Move> moves) const {
  int64_t bytes = 0;
  for (const Move& m : moves) {
    if (m.kind != Move::kCopy || device_of(m.from.model) == device_of(m.to.model)) continue;
    const Model& to = models_[m.to.model.index()];
    const int64_t of_page = m.store == Store::kKv
                                ? to.shape->page_bytes * m.layers / to.shape->layers
                                : to.shape->frontier_page_bytes;
    bytes += of_page * m.rows / to.pools->page_rows;
  }
  return bytes;
}

// The same, and the bytes of hidden rows that are inputs of the batch.
int64_t Dispatcher::bytes_from_elsewhere(const Batch& batch) const {
  if (schedulers_.size() == 1) return 0;
  int64_t bytes = bytes_from_elsewhere(std::span(batch.moves));
  for (const Work& w : batch.works) {
    for (const Work::Embed& e : w.embeds) {
      if (device_of(e.model) == device_of(w.model)) continue;
      const Model& from = models_[e.model.index()];
      bytes += from.shape->frontier_page_bytes / from.pools->page_rows;
    }
  }
  return bytes;
}

void Dispatcher::launch(DeviceScheduler& scheduler, const DeviceScheduler::LaunchedBatch& next) {
  const Batch& batch = next.batch;
  if (const int64_t bytes = bytes_from_elsewhere(batch); bytes > 0) copied_->add(bytes);
  ModelSeries* series = nullptr;  // none for a batch of moves alone
  if (!batch.works.empty()) series = models_[batch.works.front().model.index()].series;
  if (series) {
    series->batches.add();
    series->batch_rows.observe(next.rows);
  }
  const DeviceId device = scheduler.device();
  scheduler.backend()->launch(
      batch, [this, device](BatchResult result) { done_(device, std::move(result)); });
}

void Dispatcher::answered(PassFlight& flight, const Work& work, Readout&& readout,
                          Finished* finished) {
  absorb(flight, work, std::move(readout));
  if (!work.last) return;
  // As in a request's statistics, recomputation is not counted as a pass of the method.
  ModelSeries* const series = models_[work.model.index()].series;
  if (series && !flight.recompute) series->passes[static_cast<size_t>(flight.role)].add();
  finished->done.push_back(&flight);
}

void Dispatcher::finish_late(PassFlight* flight, WorkResult&& result, Finished* finished) {
  finished->clear();
  --late_;
  const std::unique_ptr<LateAnswers> answers = std::move(flight->answers);
  const Work& work = answers->work();
  schedulers_[flight->device.index()].end_late(flight, !work.last);
  SequenceRun* const run = flight->sequence;
  if (run->state() == SequenceRun::kEnding) return;
  if (result.status.ok()) {
    answered(*flight, work, std::move(result.readout), finished);
  } else {
    finished->failed.emplace_back(run, std::move(result.status));
  }
}

void Dispatcher::finish(DeviceId device, BatchResult&& result, TimePoint now, Finished* finished) {
  using End = DeviceScheduler::End;
  finished->clear();
  DeviceScheduler& scheduler = schedulers_[device.index()];
  const bool ok = result.status.ok();
  if (!ok && absl::IsResourceExhausted(result.status) && scheduler.retry_smaller(now)) {
    advance_transfers();  // its moves are made
    end_reads(scheduler, result.status);
    return;
  }
  TANDEM_CHECK(!scheduler.oldest_doomed() || !ok);
  finished->lost = !ok && absl::IsUnavailable(result.status);
  if (finished->lost) scheduler.lose();
  std::vector<End> ends;  // by work; empty: all are done
  if (ok && !std::ranges::all_of(result.works, is_done)) {
    for (const WorkResult& w : result.works) ends.push_back(end_of(w));
  }
  std::unique_ptr<DeviceScheduler::LaunchedBatch> batch = scheduler.finish(now, ends);
  const int rows = batch->rows;
  const int works = static_cast<int>(batch->flights.size());
  TANDEM_CHECK(!ok || result.works.size() == batch->flights.size());
  BatchShares shares;
  if (works > 0) {  // none for a batch of moves alone
    Model& model = models_[batch->batch.works.front().model.index()];
    if (ok && rows > 0) {
      model.cost.observe(rows, seconds(result.busy));
      model.time.observe(rows, seconds(result.busy));
    }
    shares = model.cost.shares(rows, works);
  }
  int requests = 0;  // in the batch, once counted
  const auto ran = [&](PassFlight& flight, const Work& work) {
    SequenceRun* const run = flight.sequence;
    flight.seconds += seconds(result.busy);
    flight.works = works;
    run->accounts().ran(flight.role, rows, result.busy, shares.of(work.run_rows()),
                        work.last && !flight.recompute);
    if (PassRecorder* const recorder = run->recorder()) {
      if (requests == 0) requests = requests_of(*batch);
      recorder->ran(&flight, work, {rows, requests, result.busy, now});
    }
  };
  for (size_t i = 0; i < batch->flights.size(); ++i) {
    PassFlight& flight = *batch->flights[i];
    const Work& work = batch->batch.works[i];
    SequenceRun* const run = flight.sequence;
    const End end = ends.empty() ? End::kDone : ends[i];
    if (end == End::kPutOff) continue;
    if (end == End::kLate) {
      ++late_;
      flight.answers = std::move(result.works[i].late);
      if (run->state() != SequenceRun::kEnding) ran(flight, work);
      flight.answers->start(
          [this, f = &flight](WorkResult answers) { late_done_(f, std::move(answers)); });
      continue;
    }
    if (run->state() == SequenceRun::kEnding) continue;
    absl::Status status = ok ? result.works[i].status : result.status;
    if (mutated(Mutation::kFaultSpreads) && ok) {
      for (const WorkResult& w : result.works) status.Update(w.status);
    }
    if (mutated(Mutation::kNanAccepted) && ok && !status.ok()) {
      status = absl::OkStatus();
      result.works[i].readout.row.resize(work.outputs.size());
      for (Out& out : result.works[i].readout.row) out.token = out.argmax = 0;
    }
    if (!status.ok()) {
      finished->failed.emplace_back(run, status);
      continue;
    }
    ran(flight, work);
    answered(flight, work, std::move(result.works[i].readout), finished);
  }
  scheduler.recycle(std::move(batch));
  if (!transfers_.empty()) advance_transfers();
  if (!reads_.empty()) end_reads(scheduler, result.status);
}

void Dispatcher::update_gauges() {
  for (const Model& m : models_) {
    if (!m.series || !m.pools) continue;
    m.series->kv_pages_total.set(static_cast<double>(m.pools->kv.total()));
    m.series->kv_pages_used.set(static_cast<double>(m.pools->kv.used()));
    m.series->kv_pages_cached.set(static_cast<double>(m.pools->kv.cached()));
  }
}

std::string Dispatcher::check_pages(const std::vector<const SequenceRun*>& runs) const {
  for (const Model& m : models_) {
    if (!m.pools) continue;
    std::vector<const SequenceCache*> caches;
    for (const SequenceRun* run : runs) run->caches().add_caches_of(*m.pools, &caches);
    const std::string wrong = m.pools->check(caches);
    if (!wrong.empty()) return absl::StrCat("model ", m.pools->model.value, ": ", wrong);
  }
  return "";
}

}  // namespace tandem
