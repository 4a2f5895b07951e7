// Is one more draft worth its time? Decided draft by draft, within a round, by what is known of the
// drafts so far.
//
// A draft makes a token if it and all before it are kept. How likely that is follows from what made
// it: the small model's confidence, or how long an end of the text was looked up (n-grams). It
// costs a pass of the small model, unless it was looked up, and a row of the large one's. Drafting
// goes on as long as what one more is likely to make comes faster than tokens do on the whole; that
// is the rule for stopping that makes most tokens in a second, and it amounts to a threshold for
// the chance that a draft is rejected (Huang et al. 2024, SpecDec++, theorem 1). Chances and costs
// are learnt from the rounds that were. A second is one of MethodStats::share_seconds (payoff.h).
//
// The tokens of a request must not depend on its drafts, since time decides about them.
//
// Loop thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/decode/ngram_index.h"
#include "engine/decode/payoff.h"

namespace tandem {

// Of late, how often was something kept?
class KeptRate {
 public:
  // memory: of an observation against the next one
  void saw(bool kept, double memory) {
    kept_ = memory * kept_ + (kept ? 1 : 0);
    all_ = memory * all_ + 1;
    ++seen_;
  }
  // As if `weight` observations at the rate `prior` had been made.
  double rate(double prior, double weight) const {
    return (kept_ + weight * prior) / (all_ + weight);
  }
  // The same of a guess, which counts less and less.
  double rate_from_guess(double guess, double weight) const {
    return rate(guess, weight * weight / (weight + seen_));
  }
  double seen() const { return seen_; }  // observations, ever
  // What was seen counts as `most` observations, if it was more.
  void forget(double most) {
    if (all_ <= most) return;
    kept_ *= most / all_;
    all_ = most;
  }

 private:
  double kept_ = 0, all_ = 0;
  double seen_ = 0;  // ever
};

// How likely drafts are kept, where all before them were.
struct DraftOdds {
  static constexpr int kConfidences = 10;  // classes of the small model's confidence
  static constexpr int kGuess = kConfidences + 2 * kMaxNgram;  // and of matched lengths, at first
                                                               // and when a copy goes on
  static constexpr int kMade = kGuess + kConfidences;          // and of its masks' confidence
  // What comes before a draft: one that was made so, or a round that kept all, or that did not.
  static constexpr int kAfterAll = kMade, kAfterSome = kMade + 1, kBefore = kMade + 2;

  static int by_confidence(float max_prob);
  static int by_lookup(int matched, bool goes_on);  // matched: [1, kMaxNgram]
  static int by_guess(float max_prob) { return kGuess + by_confidence(max_prob); }

  std::array<KeptRate, kMade> made;    // of a draft, by how it was made
  std::array<KeptRate, kBefore> next;  // of the small model's next draft, by what comes before it
  KeptRate guess;                      // of its masks' guess behind that
  void forget(double most);
};

// Rounds, of late, and what they had.
struct RoundMeans {
  double rounds = 0, tokens = 0, drafts = 0, small_passes = 0;
  void saw(double memory, int tokens_of, int drafts_of, int passes_of);
  void forget(double most);  // rounds
};

// What all requests of a deployment have learnt. A new one begins with it.
struct DraftLore {
  static constexpr int kTrial = 2;     // rounds of each request that a trial has
  static constexpr int kPlain = 96;    // rounds with drafts until one without
  static constexpr int kFurther = 48;  // rounds until one that goes further than what pays

  DraftOdds odds;
  RoundMeans means;
  RoundCost large, small;  // of a pass: of one row, and of each further one
  Trials trials{kTrial, kPlain};
  int since_further = 0;
  int barred = 0;   // drafts that were less sure than a request allows
  int streams = 0;  // requests that go by it now
};

// The drafts of one request.
class Steering {
 public:
  static constexpr double kMemory = 0.98, kLoreMemory = 0.995;  // of a draft
  static constexpr double kRoundMemory = 0.97, kLoreRoundMemory = 0.99;
  static constexpr double kLoreWeight = 8;   // observations that the lore stands for
  static constexpr double kGuessWeight = 2;  // and what is believed without any, at first
  static constexpr double kNewRounds = 30;   // that the lore's means stand for
  static constexpr int kUnknown = 2;         // drafts, as long as costs are not known
  static constexpr int kBarred = 16;         // tries to know them where drafts may not be made

  // lore: null: of this request alone.
  // guesses: do masks guess what the small model will say?
  Steering(int most, std::shared_ptr<DraftLore> lore, bool guesses = false);
  ~Steering() { --lore_->streams; }
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  bool alone() const { return lore_->streams == 1; }  // no other request goes by the lore
  // A round begins, or the request.
  void begin();
  // May the small model draft in it? So may it read the prompt.
  bool may_draft() const { return may_draft_; }
  enum class Next : uint8_t { kStop, kSmall, kLookup };
  // matched: of what n-grams propose next, 0: nothing. rows: of the small model's pass, if it makes
  // one now. guess: how sure its masks are of what they guess next; 0: they guess nothing.
  Next next(int matched, int rows, float guess = 0);
  // The small model has made a pass of so many rows of the text. What it said follows.
  void passed(int rows, double seconds);
  // A token that it said. False: it is less sure than `least`, or not worth its row of the large
  // model; then the round has no more.
  bool drafted(float max_prob, float least = 0);
  // The same of a guess by its masks, which nobody has made a pass for.
  bool guessed(float max_prob, float least = 0);
  void looked_up(int matched);
  // The large model has kept `accepted` of the drafts, in a pass of `rows` rows.
  void judged(int accepted, int rows, double seconds);

 private:
  double rate_of(int made) const;
  double rate_of_next() const;
  double pace() const;  // tokens in a second, at best
  double rate_of_guess() const;
  double gain_of_small(int rows, float guess = 0) const;
  double gain_of_known(int made) const;  // one that costs a row of the large model alone
  bool unknown() const { return !lore_->large.known() && lore_->barred < kBarred; }
  void made(int how);
  void plan(bool drafted, double lost);

  const int most_;
  const bool guesses_;
  const std::shared_ptr<DraftLore> lore_;
  DraftOdds odds_;
  RoundMeans means_;
  int after_ = DraftOdds::kAfterAll;

  // Of this round.
  struct Draft {
    int before, made;
    bool by_small;
  };
  std::vector<Draft> drafts_;
  double alive_ = 1;  // the chance that all of them are kept
  int before_ = DraftOdds::kAfterAll;
  int passes_ = 0;    // of the small model
  double spent_ = 0;  // seconds
  bool may_draft_ = false;
  bool further_ = false;
  bool first_ = true;  // no round yet: the small model still reads the prompt
  Trials::Next mode_ = Trials::Next::kBest;
  bool plain_next_ = false;  // for the round's cost to be known
};

}  // namespace tandem
