#include "engine/sched/device_scheduler.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

namespace {

// True: the pass is one of a small model, from which its sequence draws, and the large model
// verifies.
bool is_draft(const PassFlight& f) {
  if (f.role != Role::kSmall || f.pass.read.empty()) return false;
  return std::ranges::any_of(f.sequence->spec().roles(), [](const CastRole& r) {
    return r.role == Role::kLarge && !r.prompt_only;
  });
}

}  // namespace

void DeviceScheduler::remove(const SequenceRun* sequence) {
  std::erase_if(pending_, [sequence](const PassFlight* f) { return f->sequence == sequence; });
}

uint64_t DeviceScheduler::end_of_copies_to(std::span<const Move> reading) const {
  const auto is_read = [reading](const Move& m) {
    return m.kind == Move::kCopy && std::ranges::any_of(reading, [&m](const Move& r) {
             return r.store == m.store && r.from.model == m.to.model && r.from.page == m.to.page;
           });
  };
  for (size_t i = moves_.size(); i-- > 0;) {
    if (is_read(moves_[i])) return flushed_ + i + 1;
  }
  for (auto batch = running_.rbegin(); batch != running_.rend(); ++batch) {
    if (std::ranges::any_of((*batch)->batch.moves, is_read)) return (*batch)->moves_end;
  }
  return 0;
}

void DeviceScheduler::take_moves(LaunchedBatch* to) {
  for (const Move& move : moves_) {
    if (move.kind != Move::kFree || log_frees_) to->batch.moves.push_back(move);
  }
  flushed_ += moves_.size();
  moves_.clear();
  to->moves_end = flushed_;
}

std::span<const Candidate> DeviceScheduler::runnable() {
  candidates_.clear();
  for (size_t i = 0; i < pending_.size(); ++i) {
    const PassFlight& f = *pending_[i];
    if (!f.may_run()) continue;
    Candidate& c = candidates_.emplace_back();
    c.index = static_cast<int>(i);
    c.model = f.cache->model();
    c.fixed_rows = f.fixed_rows();
    c.rows = f.rows() - f.started;
    c.splittable = std::max(0, f.splittable - f.started);
    c.drafts = is_draft(f);
    c.priority = f.priority;
    c.order = f.order;
    const Account& account = *f.sequence->account();
    c.client = account.number();
    c.served = account.served();
    c.cost = account.token_cost();
  }
  return candidates_;
}

int64_t DeviceScheduler::pending_rows() const {
  int64_t rows = 0;
  for (const PassFlight* f : pending_) rows += f->fixed_rows() + f->rows() - f->started;
  return rows;
}

// True: all pending and launched passes belong to one sequence.
bool DeviceScheduler::one_sequence() const {
  const SequenceRun* one = nullptr;
  const auto same = [&one](const PassFlight* f) {
    one = one ? one : f->sequence;
    return f->sequence == one;
  };
  return std::ranges::all_of(pending_, same) && std::ranges::all_of(running_, [&](const auto& r) {
           return std::ranges::all_of(r->flights, same);
         });
}

std::vector<Picked> DeviceScheduler::pick() {
  BatchLimits limits = limits_;
  if (mutated(Mutation::kIgnoreStepRows)) limits.step_rows = 1 << 20;
  limits.drafts_first = draft_batches_ < kDraftBatches;
  if (idle()) return pick_batch(runnable(), last_model_, limits);

  // Together, launched batches delay a new sequence by at most one full batch.
  limits.step_rows -= rows_under_way_;
  const bool chained = std::ranges::any_of(
      pending_, [](const PassFlight* f) { return f->may_run() && f->follows(); });
  if (!chained || limits.step_rows <= 0 || running_.size() >= kChain) return {};
  if (running_.size() >= kAhead && !one_sequence()) return {};
  std::vector<Picked> picked = pick_batch(runnable(), last_model_, limits);
  int rows = 0;
  bool follows = false;
  for (const Picked& p : picked) {
    const PassFlight& f = *pending_[static_cast<size_t>(p.index)];
    rows += f.fixed_rows() + p.count;
    follows |= f.follows();
  }
  if (!follows || rows > limits.step_rows) picked.clear();
  return picked;
}

const DeviceScheduler::LaunchedBatch* DeviceScheduler::next(TimePoint now) {
  if (!idle() && running_.front()->doomed) return nullptr;
  const std::vector<Picked> picked = pick();
  if (picked.empty() && (!idle() || required_ <= flushed_)) return nullptr;

  if (spare_.empty()) spare_.push_back(std::make_unique<LaunchedBatch>());
  std::unique_ptr<LaunchedBatch> running = std::move(spare_.back());
  spare_.pop_back();
  Batch& batch = running->batch;
  batch.behind = !idle();
  take_moves(running.get());
  batch.forget.swap(forget_);
  batch.works.resize(picked.size());
  running->flights.reserve(picked.size());
  running->rows = 0;
  for (size_t i = 0; i < picked.size(); ++i) {
    const Picked& p = picked[i];
    PassFlight* const f = pending_[static_cast<size_t>(p.index)];
    lower(*f, p.count, &batch.works[i]);
    f->started += p.count;
    f->begun = true;
    f->under_way = true;
    f->gate = f->sequence->gate().enter();
    if (batch.works[i].last) f->cache->launch_pass();
    running->flights.push_back(f);
    running->rows += batch.works[i].run_rows();
  }
  if (!batch.works.empty()) {
    last_model_ = batch.works.front().model;
    draft_batches_ = is_draft(*running->flights.front()) ? draft_batches_ + 1 : 0;
  }
  if (picked.size() == pending_.size()) {
    pending_.clear();
  } else {
    std::erase_if(pending_, [](const PassFlight* f) { return f->under_way; });
  }
  rows_under_way_ += running->rows;
  if (idle()) oldest_since_.store(now, std::memory_order_relaxed);
  running_.push_back(std::move(running));
  return running_.back().get();
}

// No chunk of it is on the device, and no answers are late.
void DeviceScheduler::leave(PassFlight& f) {
  f.under_way = false;
  f.gate.leave();
  if (f.late != nullptr && f.sequence->gate().empty()) f.late->store(false);
}

// The work has not run.
void DeviceScheduler::take_back(PassFlight& f, const Work& work) {
  f.started -= work.count;
  f.begun = f.started > 0;
  if (work.last) f.cache->take_back_pass();
}

// By age.
void DeviceScheduler::sort_pending() {
  std::ranges::sort(pending_, {}, [](const PassFlight* f) { return f->order; });
}

// The batch has ended.
template <class IsLeft>
void DeviceScheduler::put_back(const LaunchedBatch& batch, std::span<const End> ends, IsLeft left) {
  const size_t before = pending_.size();
  for (size_t i = 0; i < batch.flights.size(); ++i) {
    PassFlight* const f = batch.flights[i];
    const Work& work = batch.batch.works[i];
    const End end = ends.empty() ? End::kDone : ends[i];
    if (end == End::kLate) continue;
    if (end == End::kPutOff) take_back(*f, work);
    leave(*f);
    const bool again = end == End::kPutOff || left(work);
    if (again && !f->sequence->gate().closed()) pending_.push_back(f);
  }
  if (pending_.size() > before) sort_pending();
}

void DeviceScheduler::end_late(PassFlight* flight, bool rows_left) {
  leave(*flight);
  if (!rows_left || flight->sequence->gate().closed()) return;
  pending_.push_back(flight);
  sort_pending();
}

std::unique_ptr<DeviceScheduler::LaunchedBatch> DeviceScheduler::take_oldest(TimePoint now) {
  std::unique_ptr<LaunchedBatch> oldest = std::move(running_.front());
  running_.pop_front();
  oldest_since_.store(idle() ? kNever : now, std::memory_order_relaxed);
  rows_under_way_ -= oldest->rows;
  made_ = oldest->moves_end;
  return oldest;
}

std::unique_ptr<DeviceScheduler::LaunchedBatch> DeviceScheduler::finish(TimePoint now,
                                                                        std::span<const End> ends) {
  std::unique_ptr<LaunchedBatch> done = take_oldest(now);
  put_back(*done, ends, [](const Work& w) { return !w.last; });
  recover();
  return done;
}

// next() overwrites the works.
void DeviceScheduler::recycle(std::unique_ptr<LaunchedBatch> done) {
  done->batch.moves.clear();
  done->batch.forget.clear();
  done->flights.clear();
  done->doomed = false;
  spare_.push_back(std::move(done));
}

void DeviceScheduler::recover() {
  if (++succeeded_ < kRecovery) return;
  succeeded_ = 0;
  limits_.step_rows = std::min(limits_.step_rows * 2, full_limits_.step_rows);
  limits_.chunk_rows = std::min(limits_.chunk_rows * 2, full_limits_.chunk_rows);
  limits_.works = std::min(limits_.works * 2, full_limits_.works);
}

bool DeviceScheduler::retry_smaller(TimePoint now) {
  const LaunchedBatch& refused = *running_.front();
  if (!refused.doomed) {
    for (size_t i = 1; i < running_.size(); ++i) running_[i]->doomed = true;
    if (refused.flights.empty()) return false;
    if (refused.flights.size() == 1 && limits_.chunk_rows <= 1) return false;
    limits_.step_rows = std::max(1, std::min(limits_.step_rows, refused.rows) / 2);
    limits_.chunk_rows = std::min(limits_.chunk_rows, limits_.step_rows);
    limits_.works = std::max<int>(1, static_cast<int>(refused.flights.size()) / 2);
    succeeded_ = 0;
  }
  take_back(now);
  return true;
}

void DeviceScheduler::take_back(TimePoint now) {
  std::unique_ptr<LaunchedBatch> refused = take_oldest(now);
  for (size_t i = 0; i < refused->flights.size(); ++i) {
    take_back(*refused->flights[i], refused->batch.works[i]);
  }
  put_back(*refused, {}, [](const Work&) { return true; });
  recycle(std::move(refused));
}

}  // namespace tandem
