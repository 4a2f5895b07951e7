#include "engine/decode/pacing/draft_stopping.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tandem {
namespace {

// The value of an accepted draft beyond its token, in tokens: further drafts behind it.
constexpr double kThen = 1;
// A class with fewer observations is verified even if it does not seem worth it.
constexpr double kObserved = 4;
// An estimate of fewer observations may be wrong, and is tried even if it does not seem worth it.
constexpr double kCertain = 32;
// Of a batch of the small model, relative to the large one's, while it is unknown.
constexpr double kSmallShare = 0.3;
// Tokens of a round that the small model has not read when the next one begins, at most.
constexpr int kUnread = 2;
// Weight of a batch of the small model in the mean of DraftStats::unshared.
constexpr double kBatch = 1.0 / 64;
// A pass with a mask runs a row, a parallel token, and a mask behind each.
constexpr double kParallelRows = 4;
// Tokens of an answer, before the first one, and weights of the first one and of each other one in
// the mean: the first one may be short by chance.
constexpr double kExpectedAnswer = 128, kFirstAnswer = 1.0 / 2, kAnswers = 1.0 / 8;
constexpr double kLongAnswer = 1024;  // mean tokens, at most
// Weight of the time to read a text: it is certain, and what drafts gain later is not.
constexpr double kReading = 1.15;
// Weight of the expected rounds, in observed ones.
constexpr double kExpected = 4;
// Rounds with the small model, the expected ones included, that show what it is worth.
constexpr double kKnown = 12;
// A row's time counts as this share more beside kMany requests, and less so beside fewer. Drafts
// are made where estimates are high by chance, so drafts that seem just worth their rows lose.
constexpr double kCaution = 0.15, kMany = 7;
// Of a forced draft. The model may write the same characters as other tokens.
constexpr double kForcedAccepted = 0.98;

}  // namespace

DraftStopping::DraftStopping(int most, std::shared_ptr<AcceptanceStats> stats, By by)
    : most_(most),
      by_(by),
      stats_(stats ? std::move(stats) : std::make_shared<AcceptanceStats>()),
      shared_(stats_->drafts) {
  ++shared_.streams;
}

DraftStopping::~DraftStopping() {
  be_willing(false);
  use_small(false);
  be_active(false);
  --shared_.streams;
  if (made_ == 0) return;
  const bool first = shared_.answer <= 0;
  if (first) shared_.answer = kExpectedAnswer;
  // An answer that its limit ended would have had as many more tokens as others have.
  const double tokens = made_ + (left_ > 0 ? 0 : shared_.answer);
  shared_.answer += (first ? kFirstAnswer : kAnswers) * (tokens - shared_.answer);
  shared_.answer = std::min(shared_.answer, kLongAnswer);
}

void DraftStopping::use_small(bool on) {
  shared_.drafting += (on ? 1 : 0) - (may_draft_ ? 1 : 0);
  may_draft_ = on;
}

void DraftStopping::be_active(bool on) {
  shared_.active += (on ? 1 : 0) - (active_ ? 1 : 0);
  active_ = on;
}

void DraftStopping::be_willing(bool on) {
  shared_.willing += (on ? 1 : 0) - (willing_ ? 1 : 0);
  willing_ = on;
}

void DraftStopping::observe(int event, bool accepted) {
  acceptance_.observe(event, accepted, kMemory);
  shared_.acceptance.observe(event, accepted, kSharedMemory);
}

double DraftStopping::seconds_of_small(double rows) const {
  const BatchTime* small = now_.small.time;
  if (small != nullptr && small->known()) return small->seconds(rows);
  return kSmallShare * now_.large.time->seconds(rows);
}

// Of `drafting_` requests with such rounds, and others without the small model.
double DraftStopping::tokens_per_second(const RecentRounds& r) const {
  const RecentRounds& other = shared_.without_small;
  const double others = shared_.streams - drafting_;
  const auto sum = [&](double of_drafting, double of_other) {
    return requests() + drafting_ * of_drafting / r.rounds + others * of_other / other.rounds;
  };
  const double tokens = sum(r.tokens - r.rounds, other.tokens - other.rounds);
  double seconds = now_.large.time->seconds(sum(r.drafts, other.drafts));
  if (r.small_passes > 0) {
    const double passes = together(drafting_);  // of a batch
    const double batches = r.small_passes / r.rounds * drafting_ / passes;
    seconds += batches * seconds_of_small(passes * r.small_rows / r.small_passes);
  }
  return tokens / seconds;
}

// Recent rounds with the small model. Before the first one, those with the number of drafts that is
// best for the small model's expected acceptance: another number may not pay where that one does.
RecentRounds DraftStopping::rounds_with_small() const {
  if (shared_.with_small.rounds >= 1) return shared_.with_small;
  const DraftAcceptance& acceptance = shared_.acceptance;
  const double next = acceptance.rate(DraftAcceptance::next(DraftAcceptance::kAfterAll));
  const double parallel = acceptance.rate(DraftAcceptance::kNextParallel);
  RecentRounds best, expected{1, 1, 0, 0, 0};
  double fastest = 0, accepted = 1;
  bool faster = true;
  const auto consider = [&](const RecentRounds& rounds) {
    const double speed = tokens_per_second(rounds);
    if (speed <= fastest) return;
    fastest = speed;
    best = rounds;
    faster = true;
  };
  for (int drafts = 1; faster && drafts <= std::min(most_, kMostOfSmall); ++drafts) {
    faster = false;
    accepted *= next;
    expected.add({0, accepted, 1, 1, 1});
    consider(expected);
    if (by_ != By::kParallel || drafts == most_) continue;
    RecentRounds with_masks = expected;  // and a parallel token as the last draft
    with_masks.add({0, accepted * parallel, 1, 0, (kParallelRows - 1) * drafts});
    consider(with_masks);
  }
  best.scale(kExpected);
  return best;
}

// The rows that the small model lacks, beyond those of any pass.
double DraftStopping::catch_up() const {
  return seconds_of_small(1 + now_.behind) - seconds_of_small(1);
}

double DraftStopping::gain(const RecentRounds& with) const {
  const double answer = shared_.answer > 0 ? shared_.answer : kExpectedAnswer;
  double left = std::min<double>(now_.remaining, answer);
  // The others' tokens in this time come faster or slower, too.
  left *= requests() / drafting_;
  return left / without_ - left / tokens_per_second(with) - kReading * catch_up();
}

// Passes of the small model in a batch, if that many requests draft.
double DraftStopping::together(double drafting) const {
  return drafting / (1 + shared_.unshared * (drafting - 1));
}

double DraftStopping::requests() const {
  return std::max({now_.large.sequences, shared_.streams, shared_.peak_streams});
}

bool DraftStopping::alone() const { return requests() <= 1; }

bool DraftStopping::is_uncertain(int event) const {
  return shared_.acceptance.observations(event) < kCertain;
}

bool DraftStopping::take(double seconds) {
  const double batches = seconds / now_.large.time->seconds(1);
  if (batches > shared_.unspent) return false;
  shared_.unspent -= batches;
  return true;
}

void DraftStopping::begin_round(const Round& round) {
  now_ = round;
  shared_.begin_round();
  drafts_.clear();
  forced_ = 0;
  all_accepted_ = 1;
  passes_ = pass_rows_ = of_pass_ = 0;
  further_ = false;
  best_ = 0;
  const BatchTime* const time = now_.large.time;
  const bool could = by_ != By::kLookup;
  const bool timed = time != nullptr && time->known();
  if (!timed || time->seconds(1) <= 0) {  // on a virtual clock nothing takes time
    parallel_ = by_ == By::kParallel;
    be_willing(could && timed);
    return use_small(could && timed);
  }
  drafting_ = shared_.streams;
  without_ =
      std::max(requests() / time->seconds(requests()), tokens_per_second(shared_.without_small));
  be_willing(could && pays(rounds_with_small()));
  drafting_ = std::max(1, shared_.willing);
  const RecentRounds with = could ? rounds_with_small() : shared_.without_small;
  expect(with);
  sharing_ = together(drafting_);
  parallel_ = by_ == By::kParallel && masks_pay();
  const auto drafts = [&] { return willing_ && pays(with) && begins_with_small(); };
  const auto begins = [&] {
    return may_begin() && (drafts() || goes_on() || explores_small(with));
  };
  reads_on_ = may_draft_;
  use_small(could && (trial_ > 0 || begins()));
  on_trial_ = on_trial_ && may_draft_ && alone();
  be_active(may_draft_);
  if (!may_draft_) expect(shared_.without_small);
}

// Rounds of this mode.
void DraftStopping::expect(const RecentRounds& mode) {
  const RecentRounds& other = shared_.without_small;
  best_ = std::max(without_, tokens_per_second(mode));
  others_ = requests() - 1;
  // Where batches without drafts are the fastest, no other request is expected to draft. Else each
  // request might draft since the others do, and a row beside their drafts is cheap.
  if (best_ <= requests() / now_.large.time->seconds(requests())) return;
  others_ += (drafting_ - 1) * mode.drafts / mode.rounds +
             (shared_.streams - drafting_) * other.drafts / other.rounds;
}

// Until some rounds have shown what the small model is worth, no second request begins to use it.
bool DraftStopping::may_begin() const {
  return may_draft_ || shared_.drafting == 0 || shared_.with_small.rounds >= kKnown;
}

// A pass with mask tokens makes as many tokens as is expected, if all requests have them. While
// little is known, a request tries them alone.
bool DraftStopping::masks_pay() {
  const double tokens = 1 + rate(DraftAcceptance::kNextParallel);
  if (seconds_of_small(kParallelRows * sharing_) < tokens * seconds_of_small(sharing_)) return true;
  const double more = seconds_of_small(kParallelRows - 1 + sharing_) - seconds_of_small(sharing_);
  return may_draft_ && is_uncertain(DraftAcceptance::kNextParallel) && take(more);
}

// At the speed without the small model, a round would begin with its draft. Else no draft would be
// made, and nothing learned.
bool DraftStopping::begins_with_small() {
  const double next = std::max(rate(DraftAcceptance::next(DraftAcceptance::kAfterAll)),
                               rate(DraftAcceptance::next(DraftAcceptance::kAfterSome)));
  const double best = std::exchange(best_, without_);
  const bool begins = gain_of_small(next, 0) >= 0;
  best_ = best;
  return begins;
}

// A few rejections do not show that the small model does not pay. It stays in use until it has lost
// the time to explore.
bool DraftStopping::goes_on() {
  if (!may_draft_ || !alone() || shared_.unspent <= 0) return false;
  return on_trial_ = true;
}

// The time of this round beyond that of as many tokens without the small model.
double DraftStopping::lost(int tokens) const {
  double seconds = now_.large.time->seconds(1.0 + static_cast<double>(drafts_.size()));
  if (passes_ > 0) seconds += passes_ * seconds_of_small(1.0 * pass_rows_ / passes_);
  return seconds - tokens / without_;
}

// A trial of the small model, where it would pay if it were always right: a few rounds. If only
// reading the text makes it too slow, all rounds of the request.
bool DraftStopping::explores_small(const RecentRounds& with) {
  if (!pays(DraftStats::kAllRight)) return false;
  const double pass = now_.large.time->seconds(1);
  if (alone() && tokens_per_second(with) > without_ && -gain(with) <= shared_.unspent * pass) {
    shared_.unspent = std::max(-DraftStats::kMostUnspent, shared_.unspent - catch_up() / pass);
    return on_trial_ = true;
  }
  const double rounds = DraftStats::kTrial * (seconds_of_small(1) + 2 * row() / best_);
  if (!take(catch_up() + rounds)) return false;
  trial_ = DraftStats::kTrial;
  // Its observations outweigh older ones.
  shared_.acceptance.limit(4);
  shared_.with_small.limit(8);
  acceptance_.limit(1);
  return true;
}

double DraftStopping::worth() const {
  return best_ * (1 + kCaution * std::min(1.0, (requests() - 1) / kMany));
}

// Tokens that one more row of the large model must gain.
double DraftStopping::row() const {
  if (best_ <= 0) return 0;
  return worth() * now_.large.time->row(others_ + 1 + static_cast<double>(drafts_.size()));
}

// With mask tokens, a pass makes two tokens if the parallel one is right, and predicts another. But
// the parallel token could be verified without this pass.
double DraftStopping::gain_of_small(double next, float parallel) const {
  const double known = parallel > 0 ? rate(DraftAcceptance::parallel(parallel)) : 0;
  const double later = parallel_ ? next * rate(DraftAcceptance::kNextParallel) : 0;
  double pass = 0;
  if (best_ > 0) {
    pass = best_ * seconds_of_small(sharing_ * (parallel_ ? kParallelRows : 1)) / sharing_;
  }
  return (1 + known) * (all_accepted_ * next - row()) +
         std::max(0.0, all_accepted_ * later - row()) -
         std::max(0.0, all_accepted_ * known - row()) - pass;
}

double DraftStopping::gain_of_known(int token) const { return all_accepted_ * rate(token) - row(); }

// The first token of a copy is judged with those that are expected behind it, as the first row may
// cost more than the next ones.
double DraftStopping::gain_of_copy(int token) const {
  const double first = gain_of_known(token);
  if (first >= 0 || best_ <= 0 || !drafts_.empty()) return first;
  const BatchTime& time = *now_.large.time;
  double most = first, accepted = 1, tokens = 0;
  for (int drafts = 1; drafts <= most_copied_; ++drafts) {
    accepted *= rate(token);
    tokens += accepted;
    most = std::max(most, tokens - worth() * time.added(others_ + 1, drafts));
  }
  return most;
}

int DraftStopping::context() const {
  if (drafts_.empty()) return after_;
  return drafts_.back() == kForced ? DraftAcceptance::kAfterAll : drafts_.back();
}

DraftStopping::Next DraftStopping::next(Matched by, float parallel) {
  const int count = static_cast<int>(drafts_.size()) - forced_;
  if (count >= most_) return Next::kStop;
  if (trial_ > 0 && count == 0) return Next::kSmall;
  const bool may_draft = may_draft_ && count < kMostOfSmall;
  // The first pass of a round is shared by all requests that draft. Later on, some have completed
  // their drafts, and wait.
  sharing_ = std::max(1, passes_ == 0 ? shared_.drafting : shared_.active);
  const double probability = rate(DraftAcceptance::next(context()));
  double small = may_draft ? gain_of_small(probability, parallel) : -1;
  // The next copy would leave the small model behind again.
  if (copying_ && passes_ == 0) small -= best_ * catch_up();
  if (copies(drafts_.size()) >= most_copied_) by = {};
  if (by.tokens > 0) {
    const int token = DraftAcceptance::lookup(by, continues_copy());
    const double lookup = gain_of_copy(token);
    const double later = kThen * (rate(token) - probability);
    if (lookup >= 0 && (!may_draft || lookup + all_accepted_ * later >= small)) {
      return Next::kLookup;
    }
  }
  if (small >= 0) return Next::kSmall;
  // An estimate that a few rejections made too low would else remain: no draft would correct it.
  const bool tries =
      may_draft && count == 0 && best_ > 0 && is_uncertain(DraftAcceptance::next(context()));
  if (tries && take(-small / best_)) return Next::kSmall;
  // Explores: the acceptance of drafts that are never made is unknown.
  const bool possible = by.tokens > 0 || (may_draft && count > 0);
  if (!possible || further_ || shared_.since_further < DraftStats::kFurther) return Next::kStop;
  if (best_ > 0 && !take(row() / best_)) return Next::kStop;
  shared_.since_further = 0;
  further_ = true;
  return by.tokens > 0 ? Next::kLookup : Next::kSmall;
}

void DraftStopping::add(int token) {
  all_accepted_ *= rate(token);
  drafts_.push_back(token);
}

void DraftStopping::observe_pass(int rows, int works) {
  if (const double others = shared_.drafting - 1; others > 0) {
    const double without = std::clamp(others + 1 - works, 0.0, others);  // those not in this batch
    shared_.unshared += kBatch * (without / (others * works) - shared_.unshared);
  }
  // Reading the text from before the small model was in use is catch_up(), and not a cost of each
  // round. Reading the copies of earlier rounds is one.
  const int missed = passes_ == 0 && !reads_on_ ? std::max(0, now_.behind - kUnread) : 0;
  ++passes_;
  pass_rows_ += std::max(1, rows - missed);
  of_pass_ = 0;
}

bool DraftStopping::add_small(float max_prob, float least) {
  const int token = DraftAcceptance::small(max_prob);
  const bool worth =
      shared_.acceptance.observations(token) < kObserved || gain_of_known(token) >= 0;
  const bool first = of_pass_++ == 0;
  if (max_prob < least || (!worth && !further_ && trial_ == 0)) {
    // Never verified: counts as rejected, so that such passes become rarer. Not so a token that a
    // pass made besides others.
    if (first) observe(DraftAcceptance::next(context()), false);
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

void DraftStopping::add_lookup(Matched by) { add(DraftAcceptance::lookup(by, continues_copy())); }

void DraftStopping::add_forced() {
  all_accepted_ *= kForcedAccepted;
  drafts_.push_back(kForced);
  ++forced_;
}

// Look-ups among the first `drafts` drafts.
int DraftStopping::copies(size_t drafts) const {
  const auto end = drafts_.begin() + static_cast<ptrdiff_t>(std::min(drafts, drafts_.size()));
  return static_cast<int>(std::count_if(drafts_.begin(), end, &DraftAcceptance::is_copied));
}

// A rejected copy costs many rows and is one observation. So copies begin short, and become longer
// while their tokens are accepted. A short copy says nothing about longer ones.
void DraftStopping::observe_copies(int accepted) {
  if (2 * copies(drafts_.size()) <= most_copied_) return;
  const int most = std::max(most_copied_ / 2, 2 * copies(static_cast<size_t>(accepted)));
  most_copied_ = std::clamp(most, kLeastCopied, kMostCopied);
}

void DraftStopping::end_round(int accepted) {
  // Before it is observed: the first round must not count twice.
  if (may_draft_) shared_.with_small = rounds_with_small();
  if (on_trial_) {
    // Gains offset losses. They are no time for further trials.
    const double left = shared_.unspent - lost(accepted + 1) / now_.large.time->seconds(1);
    const double most = std::max(shared_.unspent, DraftStats::kFirstUnspent);
    shared_.unspent = std::clamp(left, -DraftStats::kMostUnspent, most);
  }
  const auto drafts = static_cast<int>(drafts_.size());
  int context = after_;
  for (int i = 0; i <= std::min(accepted, drafts - 1); ++i) {
    const int token = drafts_[static_cast<size_t>(i)];
    if (token == kForced) {
      context = DraftAcceptance::kAfterAll;
      continue;
    }
    observe(token, i < accepted);
    if (DraftAcceptance::is_small(token)) observe(DraftAcceptance::next(context), i < accepted);
    if (DraftAcceptance::is_parallel(token)) {
      observe(DraftAcceptance::kNextParallel, i < accepted);
    }
    context = token;
  }
  observe_copies(accepted);
  copying_ = 2 * copies(static_cast<size_t>(accepted)) > accepted;
  // As if nothing had been forced: other requests have no such drafts.
  if (drafts > forced_ || forced_ == 0) {
    const double tokens = std::max(0, accepted - forced_) + 1;
    if (may_draft_) {
      shared_.with_small.observe(
          {1, tokens, 1.0 * (drafts - forced_), 1.0 * passes_, 1.0 * pass_rows_});
    }
    // Without the small model, each token that was not copied takes a round.
    const double rounds = tokens - copies(static_cast<size_t>(accepted));
    shared_.without_small.observe({rounds, tokens, 1.0 * copies(drafts_.size()), 0, 0});
  }
  // A round without drafts shows neither. The more likely one is then tried.
  const auto after = [&](int event) { return rate(DraftAcceptance::next(event)); };
  const bool all = drafts > 0
                       ? accepted == drafts
                       : after(DraftAcceptance::kAfterAll) >= after(DraftAcceptance::kAfterSome);
  after_ = all ? DraftAcceptance::kAfterAll : DraftAcceptance::kAfterSome;
  made_ += accepted + 1;
  left_ = now_.remaining - accepted - 1;
  ++shared_.since_further;
  trial_ = std::max(0, trial_ - 1);
  if (best_ <= 0) return;
  const double more = kExplored * (accepted + 1) / best_ / now_.large.time->seconds(1);
  shared_.unspent = std::min(DraftStats::kMostUnspent, shared_.unspent + more);
}

}  // namespace tandem
