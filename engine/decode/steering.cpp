#include "engine/decode/steering.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tandem {
namespace {

// Rows that a small model catches up at no cost of note; more are no sign of what a draft costs.
constexpr int kBehind = 8;
// What a kept draft is worth beyond its token: the drafts after it, in tokens.
constexpr double kThen = 1;

// Where classes of confidence end, and what is believed of them at first: that it is right.
constexpr std::array<float, DraftOdds::kConfidences - 1> kEnds = {0.15F, 0.3F,  0.45F, 0.6F, 0.75F,
                                                                  0.85F, 0.92F, 0.97F, 0.99F};
constexpr std::array<double, DraftOdds::kConfidences> kRight = {0.08, 0.22, 0.37, 0.52, 0.67,
                                                                0.8,  0.88, 0.94, 0.98, 0.99};
// The same of copies, by the matched length: rather too much, as a try costs little.
constexpr std::array<double, kMaxNgram> kBegun = {0.5, 0.65, 0.75, 0.8};
constexpr std::array<double, kMaxNgram> kGoesOn = {0.7, 0.8, 0.85, 0.9};
constexpr double kSmallAtFirst = 0.7;  // of the small model's drafts
constexpr double kGuessed = 0.8;       // of a guess beside a draft that the model is as sure of
constexpr double kGuessAtFirst = 0.5;

double believed(int made) {
  if (made < DraftOdds::kConfidences) return kRight[static_cast<size_t>(made)];
  if (made >= DraftOdds::kGuess) return kGuessed * believed(made - DraftOdds::kGuess);
  const auto i = static_cast<size_t>(made - DraftOdds::kConfidences);
  return i < kMaxNgram ? kBegun[i] : kGoesOn[i - kMaxNgram];
}

}  // namespace

int DraftOdds::by_confidence(float max_prob) {
  return static_cast<int>(std::upper_bound(kEnds.begin(), kEnds.end(), max_prob) - kEnds.begin());
}

int DraftOdds::by_lookup(int matched, bool goes_on) {
  return kConfidences + (goes_on ? kMaxNgram : 0) + matched - 1;
}

void DraftOdds::forget(double most) {
  for (KeptRate& r : made) r.forget(most);
  for (KeptRate& r : next) r.forget(most);
  guess.forget(most);
}

void RoundMeans::saw(double memory, int tokens_of, int drafts_of, int passes_of) {
  rounds = memory * rounds + 1;
  tokens = memory * tokens + tokens_of;
  drafts = memory * drafts + drafts_of;
  small_passes = memory * small_passes + passes_of;
}

void RoundMeans::forget(double most) {
  if (rounds <= most) return;
  const double share = most / rounds;
  for (double* sum : {&rounds, &tokens, &drafts, &small_passes}) *sum *= share;
}

Steering::Steering(int most, std::shared_ptr<DraftLore> lore, bool guesses)
    : most_(most),
      guesses_(guesses),
      lore_(lore ? std::move(lore) : std::make_shared<DraftLore>()),
      means_(lore_->means) {
  ++lore_->streams;
  means_.forget(kNewRounds);
}

double Steering::rate_of(int made) const {
  const auto i = static_cast<size_t>(made);
  const double known = lore_->odds.made[i].rate_from_guess(believed(made), kGuessWeight);
  return odds_.made[i].rate(known, kLoreWeight);
}

double Steering::rate_of_next() const {
  const auto i = static_cast<size_t>(before_);
  const double known = lore_->odds.next[i].rate_from_guess(kSmallAtFirst, kGuessWeight);
  return odds_.next[i].rate(known, kLoreWeight);
}

// At the costs of now: batches fill and empty.
double Steering::pace() const {
  const double plain = 1 / lore_->large.plain();
  const RoundMeans& m = means_;
  if (m.rounds <= 0) return plain;
  const double seconds = m.rounds * lore_->large.plain() + m.drafts * lore_->large.more() +
                         m.small_passes * lore_->small.measured();
  return std::max(plain, m.tokens / seconds);
}

double Steering::rate_of_guess() const {
  const double known = lore_->odds.guess.rate_from_guess(kGuessAtFirst, kGuessWeight);
  return odds_.guess.rate(known, kLoreWeight);
}

// With masks it says two tokens where what they guess is right, and leaves a guess behind them; but
// what is guessed now could be judged without that pass.
double Steering::gain_of_small(int rows, float guess) const {
  const double rate = rate_of_next();
  const double known = guess > 0 ? rate_of(DraftOdds::by_guess(guess)) : 0;
  const double left = guesses_ ? rate * rate_of_guess() : 0;
  const double pass = lore_->small.measured() + std::min(rows - 1, kBehind) * lore_->small.more();
  const int drafts = guesses_ ? 2 : 1;
  return alive_ * (rate + known * rate + left - known) -
         pace() * (pass + drafts * lore_->large.more());
}

double Steering::gain_of_known(int made) const {
  return alive_ * rate_of(made) - pace() * lore_->large.more();
}

void Steering::begin() {
  drafts_.clear();
  alive_ = 1;
  before_ = after_;
  passes_ = 0;
  spent_ = 0;
  further_ = false;
  mode_ = lore_->trials.trying() ? Trials::Next::kTrial
          : plain_next_          ? Trials::Next::kPlain
                                 : Trials::Next::kBest;
  may_draft_ = mode_ == Trials::Next::kTrial ||
               (mode_ == Trials::Next::kBest && (unknown() || gain_of_small(1) >= 0));
}

Steering::Next Steering::next(int matched, int rows, float guess) {
  const auto count = static_cast<int>(drafts_.size());
  if (count >= most_ || mode_ == Trials::Next::kPlain) return Next::kStop;
  const bool trial = mode_ == Trials::Next::kTrial && count == 0;
  if (trial || (unknown() && count < kUnknown)) return Next::kSmall;
  // (Less than nothing where it may not.)
  const double small = may_draft_ ? gain_of_small(rows, guess) : -1;
  if (matched > 0) {
    const bool goes_on = count > 0 && !drafts_.back().by_small;
    const double lookup = gain_of_known(DraftOdds::by_lookup(matched, goes_on));
    const double later = kThen * (rate_of(DraftOdds::by_lookup(matched, goes_on)) - rate_of_next());
    if (lookup >= 0 && (!may_draft_ || lookup + alive_ * later >= small)) return Next::kLookup;
  }
  if (small >= 0) return Next::kSmall;
  // What is never done is not known.
  const bool may_go_on = matched > 0 || (may_draft_ && count > 0);
  if (may_go_on && !further_ && lore_->since_further >= DraftLore::kFurther) {
    lore_->since_further = 0;
    further_ = true;
    return matched > 0 ? Next::kLookup : Next::kSmall;
  }
  return Next::kStop;
}

void Steering::made(int how) {
  alive_ *= rate_of(how);
  drafts_.push_back({before_, how, how < DraftOdds::kConfidences});
  before_ = how;
}

void Steering::passed(int rows, double seconds) {
  ++passes_;
  spent_ += seconds;
  if (!first_ && rows <= kBehind) lore_->small.saw(rows - 1, seconds);
}

bool Steering::drafted(float max_prob, float least) {
  const int how = DraftOdds::by_confidence(max_prob);
  // (A class of confidence that was hardly ever verified may be better than it sounds.)
  constexpr double kKnown = 4;
  const bool worth = lore_->odds.made[static_cast<size_t>(how)].seen() < kKnown ||
                     alive_ * rate_of(how) >= pace() * lore_->large.more();
  if (max_prob < least) ++lore_->barred;
  const bool must = further_ || unknown() || mode_ == Trials::Next::kTrial;
  if (max_prob < least || (!worth && !must)) {
    // Nobody will know. To ask for it was not worth it, as if it had been wrong.
    const auto before = static_cast<size_t>(before_);
    odds_.next[before].saw(false, kMemory);
    lore_->odds.next[before].saw(false, kLoreMemory);
    return false;
  }
  made(how);
  return true;
}

bool Steering::guessed(float max_prob, float least) {
  const int how = DraftOdds::by_guess(max_prob);
  if (max_prob < least || gain_of_known(how) < 0) return false;
  made(how);
  return true;
}

void Steering::looked_up(int matched) {
  made(DraftOdds::by_lookup(matched, !drafts_.empty() && !drafts_.back().by_small));
}

void Steering::judged(int accepted, int rows, double seconds) {
  const auto drafts = static_cast<int>(drafts_.size());
  if (!first_ && rows == drafts + 1) lore_->large.saw(drafts, seconds);
  for (int i = 0; i <= std::min(accepted, drafts - 1); ++i) {
    const Draft& d = drafts_[static_cast<size_t>(i)];
    const auto saw = [&](KeptRate& own, KeptRate& all) {
      own.saw(i < accepted, kMemory);
      all.saw(i < accepted, kLoreMemory);
    };
    const auto how = static_cast<size_t>(d.made), before = static_cast<size_t>(d.before);
    saw(odds_.made[how], lore_->odds.made[how]);
    if (d.by_small) saw(odds_.next[before], lore_->odds.next[before]);
    if (d.made >= DraftOdds::kGuess) saw(odds_.guess, lore_->odds.guess);
  }
  if (mode_ == Trials::Next::kBest && !first_) {
    means_.saw(kRoundMemory, accepted + 1, drafts, passes_);
    lore_->means.saw(kLoreRoundMemory, accepted + 1, drafts, passes_);
  }
  if (drafts > 0) after_ = accepted == drafts ? DraftOdds::kAfterAll : DraftOdds::kAfterSome;
  ++lore_->since_further;
  first_ = false;
  plan(passes_ > 0, lore_->large.lost(accepted + 1, spent_ + seconds));
}

// What the next round is, of whichever request.
void Steering::plan(bool drafted, double lost) {
  drafts_.clear();
  alive_ = 1;
  before_ = after_;
  const bool was_trial = lore_->trials.trying();
  const bool pays = unknown() || gain_of_small(1) >= 0;
  const Trials::Next next = lore_->trials.saw(drafted, lost, pays, lore_->streams);
  // Where the small model does not pay there may be drafts all the same, looked up.
  plain_next_ = next == Trials::Next::kPlain && pays;
  if (next == Trials::Next::kTrial && !was_trial) {
    // What is tried now says more than what was tried then.
    lore_->odds.forget(4);
    odds_.forget(1);
  }
}

}  // namespace tandem
