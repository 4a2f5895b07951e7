#include "engine/decode/pacing/draft_stopping.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tandem {
namespace {

constexpr int kBehind = 8;  // rows of a small model's pass that tell the cost of a draft
// The value of an accepted draft beyond its token, in tokens: further drafts behind it.
constexpr double kThen = 1;
// A class with fewer observations is verified even if it does not seem worth it.
constexpr double kObserved = 4;

}  // namespace

DraftStopping::DraftStopping(int most, std::shared_ptr<AcceptanceStats> stats, bool parallel)
    : most_(most),
      parallel_(parallel),
      stats_(stats ? std::move(stats) : std::make_shared<AcceptanceStats>()),
      shared_(stats_->drafts),
      recent_(shared_.recent) {
  ++shared_.streams;
  recent_.limit(kNewRounds);
}

void DraftStopping::observe(int event, bool accepted) {
  acceptance_.observe(event, accepted, kMemory);
  shared_.acceptance.observe(event, accepted, kSharedMemory);
}

// The better of recent rounds, at the present costs, and of plain decoding.
double DraftStopping::tokens_per_second() const {
  const double plain = 1 / shared_.large.plain();
  if (recent_.rounds <= 0) return plain;
  const double seconds = recent_.rounds * shared_.large.plain() +
                         recent_.drafts * shared_.large.per_row() +
                         recent_.small_passes * shared_.small.measured();
  return std::max(plain, recent_.tokens / seconds);
}

// With mask tokens, the pass makes two tokens if the parallel one is right, and predicts another.
// But the parallel token could be verified without this pass.
double DraftStopping::gain_of_small(int rows, float parallel) const {
  const double next = rate(DraftAcceptance::next(context()));
  const double known = parallel > 0 ? rate(DraftAcceptance::parallel(parallel)) : 0;
  const double left = parallel_ ? next * rate(DraftAcceptance::kNextParallel) : 0;
  const double pass =
      shared_.small.measured() + std::min(rows - 1, kBehind) * shared_.small.per_row();
  const int drafts = parallel_ ? 2 : 1;
  return all_accepted_ * (next + known * next + left - known) -
         tokens_per_second() * (pass + drafts * shared_.large.per_row());
}

double DraftStopping::gain_of_known(int token) const {
  return all_accepted_ * rate(token) - tokens_per_second() * shared_.large.per_row();
}

void DraftStopping::begin_round() {
  drafts_.clear();
  all_accepted_ = 1;
  passes_ = 0;
  seconds_ = 0;
  further_ = false;
  mode_ = shared_.exploration.in_trial() ? Exploration::Round::kTrial
          : plain_next_                  ? Exploration::Round::kPlain
                                         : Exploration::Round::kBest;
  may_draft_ = mode_ == Exploration::Round::kTrial ||
               (mode_ == Exploration::Round::kBest && (costs_unknown() || gain_of_small(1) >= 0));
}

DraftStopping::Next DraftStopping::next(int matched, int rows, float parallel) {
  const auto count = static_cast<int>(drafts_.size());
  if (count >= most_ || mode_ == Exploration::Round::kPlain) return Next::kStop;
  const bool trial = mode_ == Exploration::Round::kTrial && count == 0;
  if (trial || (costs_unknown() && count < kUnknown)) return Next::kSmall;
  const double small = may_draft_ ? gain_of_small(rows, parallel) : -1;
  if (matched > 0) {
    const int token = DraftAcceptance::lookup(matched, continues_copy());
    const double lookup = gain_of_known(token);
    const double later = kThen * (rate(token) - rate(DraftAcceptance::next(context())));
    if (lookup >= 0 && (!may_draft_ || lookup + all_accepted_ * later >= small)) {
      return Next::kLookup;
    }
  }
  if (small >= 0) return Next::kSmall;
  // Explores: the acceptance of drafts that are never made is unknown.
  const bool possible = matched > 0 || (may_draft_ && count > 0);
  if (possible && !further_ && shared_.since_further >= DraftStats::kFurther) {
    shared_.since_further = 0;
    further_ = true;
    return matched > 0 ? Next::kLookup : Next::kSmall;
  }
  return Next::kStop;
}

void DraftStopping::add(int token) {
  all_accepted_ *= rate(token);
  drafts_.push_back(token);
}

void DraftStopping::observe_pass(int rows, double seconds) {
  ++passes_;
  seconds_ += seconds;
  if (!first_ && rows <= kBehind) shared_.small.observe(rows - 1, seconds);
}

bool DraftStopping::add_small(float max_prob, float least) {
  const int token = DraftAcceptance::small(max_prob);
  const bool worth =
      shared_.acceptance.observations(token) < kObserved || gain_of_known(token) >= 0;
  if (max_prob < least) ++shared_.too_unsure;
  const bool must = further_ || costs_unknown() || mode_ == Exploration::Round::kTrial;
  if (max_prob < least || (!worth && !must)) {
    // Never verified: counts as rejected, so that such passes become rarer.
    observe(DraftAcceptance::next(context()), false);
    return false;
  }
  add(token);
  return true;
}

bool DraftStopping::add_parallel(float max_prob, float least) {
  const int token = DraftAcceptance::parallel(max_prob);
  if (max_prob < least || gain_of_known(token) < 0) return false;
  add(token);
  return true;
}

void DraftStopping::add_lookup(int matched) {
  add(DraftAcceptance::lookup(matched, continues_copy()));
}

void DraftStopping::end_round(int accepted, int rows, double seconds) {
  const auto drafts = static_cast<int>(drafts_.size());
  if (!first_ && rows == drafts + 1) shared_.large.observe(drafts, seconds);
  int context = after_;
  for (int i = 0; i <= std::min(accepted, drafts - 1); ++i) {
    const int token = drafts_[static_cast<size_t>(i)];
    observe(token, i < accepted);
    if (DraftAcceptance::is_small(token)) observe(DraftAcceptance::next(context), i < accepted);
    if (DraftAcceptance::is_parallel(token)) {
      observe(DraftAcceptance::kNextParallel, i < accepted);
    }
    context = token;
  }
  if (mode_ == Exploration::Round::kBest && !first_) {
    recent_.observe(kRoundMemory, accepted + 1, drafts, passes_);
    shared_.recent.observe(kSharedRoundMemory, accepted + 1, drafts, passes_);
  }
  if (drafts > 0) {
    after_ = accepted == drafts ? DraftAcceptance::kAfterAll : DraftAcceptance::kAfterSome;
  }
  ++shared_.since_further;
  first_ = false;
  choose_next_round(passes_ > 0, shared_.large.lost(accepted + 1, seconds_ + seconds));
}

// The next round may be another request's: a trial is shared.
void DraftStopping::choose_next_round(bool drafted, double lost) {
  drafts_.clear();
  all_accepted_ = 1;
  const bool was_trial = shared_.exploration.in_trial();
  const bool pays = costs_unknown() || gain_of_small(1) >= 0;
  const Exploration::Round next = shared_.exploration.observe(drafted, lost, pays, shared_.streams);
  // Where the small model does not pay, looked up drafts still may.
  plain_next_ = next == Exploration::Round::kPlain && pays;
  if (next == Exploration::Round::kTrial && !was_trial) {
    // The trial's observations outweigh older ones.
    shared_.acceptance.limit(4);
    acceptance_.limit(1);
  }
}

}  // namespace tandem
