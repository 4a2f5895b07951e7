#include "engine/sched/lane.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

void Lane::remove(const SequenceRun* sequence) {
  std::erase_if(pending_, [sequence](const PassFlight* f) { return f->sequence == sequence; });
}

void Lane::wait_for(Lane& other) {
  if (other.made_ == other.log_end()) return;
  fences_.push_back({log_end(), &other, other.log_end()});
  other.wanted_ = other.log_end();
}

void Lane::take_moves(size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const Move& move = moves_[i];
    if (move.kind != Move::kFree || log_frees_) running_->batch.moves.push_back(move);
  }
  moves_.erase(moves_.begin(), moves_.begin() + static_cast<ptrdiff_t>(n));
  flushed_ += n;
  running_->moves_end = flushed_;
}

std::span<const Candidate> Lane::runnable() {
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
    c.priority = f.priority;
    c.order = f.order;
    const Account& account = *f.sequence->account();
    c.client = account.number();
    c.served = account.served();
    c.cost = account.token_cost();
  }
  return candidates_;
}

const Batch* Lane::next(TimePoint now) {
  TANDEM_CHECK(idle());
  const auto passed = [](const Fence& f) { return f.other->lost() || f.other->made_ >= f.until; };
  while (!fences_.empty() && passed(fences_.front())) {
    fences_.pop_front();
  }
  std::vector<Picked> picked;
  size_t moves = moves_.size();
  if (fences_.empty()) {
    BatchLimits limits = limits_;
    if (planted(Bug::kIgnoreStepRows)) limits.step_rows = 1 << 20;
    picked = pick_batch(runnable(), last_model_, limits);
  } else {
    moves = fences_.front().at - flushed_;
  }
  if (picked.empty() && (wanted_ <= flushed_ || moves == 0)) return nullptr;

  running_ = spare_ ? std::move(spare_) : std::make_unique<Running>();
  running_->launched = now;
  Batch& batch = running_->batch;
  take_moves(moves);
  batch.forget.swap(forget_);
  batch.works.resize(picked.size());
  running_->flights.reserve(picked.size());
  for (size_t i = 0; i < picked.size(); ++i) {
    const Picked& p = picked[i];
    PassFlight* const f = pending_[static_cast<size_t>(p.index)];
    lower(*f, p.count, &batch.works[i]);
    f->started += p.count;
    f->begun = true;
    f->under_way = true;
    f->gate = f->sequence->gate().enter();
    running_->flights.push_back(f);
  }
  if (!batch.works.empty()) last_model_ = batch.works.front().model;
  std::erase_if(pending_, [](const PassFlight* f) { return f->under_way; });
  return &batch;
}

// The batch is over. Flights whose works are `left` stand first again, in the old order.
template <class Left>
void Lane::put_back(const Running& batch, Left left) {
  std::vector<PassFlight*> again;
  for (size_t i = 0; i < batch.flights.size(); ++i) {
    PassFlight* const f = batch.flights[i];
    f->under_way = false;
    f->gate.leave();
    if (left(batch.batch.works[i]) && !f->sequence->gate().closed()) again.push_back(f);
  }
  if (!again.empty()) pending_.insert(pending_.begin(), again.begin(), again.end());
}

std::unique_ptr<Lane::Running> Lane::finish() {
  std::unique_ptr<Running> done = std::move(running_);
  made_ = done->moves_end;
  put_back(*done, [](const Work& w) { return !w.last; });
  recover();
  return done;
}

// The works stay as they are: next() writes over them.
void Lane::recycle(std::unique_ptr<Running> done) {
  done->batch.moves.clear();
  done->batch.forget.clear();
  done->flights.clear();
  spare_ = std::move(done);
}

void Lane::recover() {
  if (++went_well_ < kRecovery) return;
  went_well_ = 0;
  limits_.step_rows = std::min(limits_.step_rows * 2, full_limits_.step_rows);
  limits_.chunk_rows = std::min(limits_.chunk_rows * 2, full_limits_.chunk_rows);
  limits_.works = std::min(limits_.works * 2, full_limits_.works);
}

bool Lane::retry_smaller() {
  const int rows = running_->batch.run_rows();
  if (running_->flights.empty()) return false;
  if (running_->flights.size() == 1 && limits_.chunk_rows <= 1) return false;
  limits_.step_rows = std::max(1, std::min(limits_.step_rows, rows) / 2);
  limits_.chunk_rows = std::min(limits_.chunk_rows, limits_.step_rows);
  limits_.works = std::max<int>(1, static_cast<int>(running_->flights.size()) / 2);
  went_well_ = 0;
  const std::unique_ptr<Running> failed = std::move(running_);
  made_ = failed->moves_end;
  for (size_t i = 0; i < failed->flights.size(); ++i) {
    PassFlight& f = *failed->flights[i];
    f.started -= failed->batch.works[i].count;
    f.begun = f.started > 0;
  }
  put_back(*failed, [](const Work&) { return true; });
  return true;
}

}  // namespace tandem
