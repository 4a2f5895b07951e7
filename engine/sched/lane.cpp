#include "engine/sched/lane.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

std::vector<std::shared_ptr<PassFlight>> Lane::remove(const SequenceRun* sequence) {
  std::vector<std::shared_ptr<PassFlight>> removed;
  std::erase_if(pending_, [&](const std::shared_ptr<PassFlight>& f) {
    if (f->sequence != sequence || f->under_way) return false;
    removed.push_back(f);
    return true;
  });
  return removed;
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

// Passes on one cache run one after the other, in order.
std::span<const Candidate> Lane::runnable(const Available& available) {
  candidates_.clear();
  absl::flat_hash_set<const SequenceCache*> seen;
  seen.reserve(pending_.size());
  for (size_t i = 0; i < pending_.size(); ++i) {
    const PassFlight& f = *pending_[i];
    const bool memory_ready = !f.memory || !seen.contains(f.memory);
    if (!seen.insert(f.cache).second || !memory_ready) continue;
    if (!std::all_of(f.awaits.begin(), f.awaits.end(), std::cref(available))) continue;
    Candidate c;
    c.index = static_cast<int>(i);
    c.model = f.cache->model();
    c.fixed_rows = f.fixed_rows();
    c.rows = f.rows() - f.started;
    c.splittable = std::max(0, f.splittable - f.started);
    c.priority = f.priority;
    c.order = f.order;
    if (const Account* account = f.sequence ? f.sequence->account : nullptr) {
      c.client = account->number();
      c.served = account->served();
      c.cost = account->token_cost();
    }
    candidates_.push_back(c);
  }
  return candidates_;
}

const Batch* Lane::next(const Available& available, TimePoint now) {
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
    picked = pick_batch(runnable(available), last_model_, limits);
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
    const std::shared_ptr<PassFlight>& f = pending_[static_cast<size_t>(p.index)];
    lower(*f, p.count, &batch.works[i]);
    f->started += p.count;
    f->begun = true;
    f->under_way = true;
    f->gate = f->sequence->gate.enter();
    running_->flights.push_back(f);
  }
  if (!batch.works.empty()) last_model_ = batch.works.front().model;
  std::erase_if(pending_, [](const auto& f) { return f->under_way; });
  return &batch;
}

std::unique_ptr<Lane::Running> Lane::finish() {
  std::unique_ptr<Running> done = std::move(running_);
  made_ = done->moves_end;
  // In reverse, so that the oldest comes to stand first again.
  for (size_t i = done->flights.size(); i-- > 0;) {
    const std::shared_ptr<PassFlight>& f = done->flights[i];
    f->under_way = false;
    f->gate.leave();
    f->finished += done->batch.works[i].count;
    if (!done->batch.works[i].last && !f->sequence->gate.closed()) pending_.push_front(f);
  }
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
  for (size_t i = failed->flights.size(); i-- > 0;) {
    const std::shared_ptr<PassFlight>& f = failed->flights[i];
    f->under_way = false;
    f->gate.leave();
    f->started -= failed->batch.works[i].count;
    f->begun = f->started > 0;
    if (!f->sequence->gate.closed()) pending_.push_front(f);
  }
  return true;
}

}  // namespace tandem
