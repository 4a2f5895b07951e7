// How large a tree pays? From none up, by what masks foresee and what rows cost.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/payoff.h"

namespace tandem {

// How often the candidates of masks are right where those before them were: of m_{i + 1} the one of
// each rank, as far as tokens have shown. What a mask has not shown yet is what others know of it,
// or else taken to be a little worse than at the mask before it.
class MaskHits {
 public:
  static constexpr double kMemory = 0.98;  // a token's weight against the one after it
  static constexpr double kDoubt = 2;      // tokens that what is assumed at first counts for
  static constexpr double kBelieved = 8;   // and what `others` say
  static constexpr double kFirst = 0.5;    // the first mask's best candidate, at first
  static constexpr double kNext = 0.7;     // of the mask before it; of the rank before it: 1/4
  static constexpr double kNextRank = 0.25;

  // others: of at least so many masks and candidates, outlives this; null: nobody knows anything.
  MaskHits(int masks, int candidates, const MaskHits* others = nullptr, double memory = kMemory);

  // The token that m_{mask + 1} had foreseen has come: its candidate `rank`, or -1: none of the
  // first `candidates`, which are all that were looked at.
  void saw(int mask, int rank, int candidates);
  double rate(int mask, int rank) const {  // in [0, 1]; over the ranks: at most 1
    return rates_[static_cast<size_t>(mask)][static_cast<size_t>(rank)];
  }
  // From here on what was seen so far says half as much.
  void doubt();
  // Rates follow what is seen here; this has them follow what the others have seen since.
  void estimate();
  int masks() const { return static_cast<int>(rates_.size()); }
  int candidates() const { return static_cast<int>(rates_[0].size()); }

 private:
  struct Seen {
    double tokens = 0, hits = 0;
  };
  const MaskHits* others_;
  double memory_;
  std::vector<std::vector<Seen>> seen_;  // by mask and rank
  std::vector<std::vector<double>> rates_;
};

// Tokens of a pass when every pass has this tree: as long as masks hang on what is accepted last,
// those of the next tree are fresh; else they are what is left of the masks above it.
double expected_tokens(const BitaTree& tree, const MaskHits& hits);

// The median of the last few numbers: one round that a machine disturbs does not move it, and a few
// do not make rounds of one kind look longer than those of another, of which there are more.
class RecentMedian {
 public:
  static constexpr size_t kMost = 5;

  void saw(double x);
  double value() const;  // 0: nothing was seen
  bool empty() const { return seen_ == 0; }

 private:
  std::array<double, kMost> last_{};
  size_t seen_ = 0;
};

// What rounds take by their rows, in seconds of MethodStats::share_seconds: a line, bent towards
// what rounds of each size took of late. Products take so many rows at once, so a row more may cost
// nothing or much.
class TreeCost {
 public:
  static constexpr double kWeight = 0.125;  // of a round, in the line's slope
  static constexpr double kMemory = 0.99;   // a round's weight against the next one of another size
  static constexpr double kMost = 10;       // rounds of a size that count
  static constexpr double kDoubt = 1;       // rounds that the line counts for at each size
  static constexpr double kSeen = 3;        // rounds until a size is known

  // A round of so many rows beside the last token's. REQUIRES: nothing else made it longer.
  void saw(int rows, double seconds);
  bool known() const { return !plain_.empty() && rows_ > 0; }
  // Where nothing costs time, as on a virtual clock, all rounds take 1.
  double plain() const { return plain_.value() > 0 ? plain_.value() : 1; }
  double with(int rows) const;
  // Sizes beyond are none to try yet: what the seen ones say of them may be far from true.
  int reach() const;
  bool seen(int rows) const;
  // By how many rounds without rows a round of so many seconds is longer than it has tokens.
  double lost(int tokens, double seconds) const;

 private:
  struct Seen {
    double rounds = 0;
    RecentMedian seconds;
  };
  double per_row() const { return rows_ > 0 ? std::max(0.0, more_ / rows_) : 0; }
  double bent(int rows, const Seen& seen) const;  // seconds more than without rows

  RecentMedian plain_;          // of a round without rows
  double rows_ = 0, more_ = 0;  // of late, and seconds that they added
  std::map<int, Seen> seen_;    // by rows
};

// The tokens that trees have made, beside those that were expected of them.
class Promises {
 public:
  static constexpr double kMemory = 0.99;  // a round's weight against the one after it
  static constexpr double kTrust = 8;      // tokens made as expected, at first
  static constexpr double kTrials = 0.75;  // what was seen before a trial counts for so much after

  void saw(int tokens, double expected);
  double kept() const { return std::min(1.0, (kTrust + made_) / (kTrust + expected_)); }
  void doubt() { made_ *= kTrials, expected_ *= kTrials; }

 private:
  double made_ = 0, expected_ = 0;  // tokens
};

// What all requests of a deployment have learnt. A new one begins with it: where trees do not pay
// it has none. What rows cost is known for each number of requests at once, roughly: a row that
// costs nothing in the batches of one may cost as much as a token in those of eight. Devices,
// contexts and requests of other methods are not told apart: costs are those of late rounds,
// whichever they were.
struct BitaLore {
  static constexpr int kMost = 16;          // masks and candidates
  static constexpr double kMemory = 0.995;  // of a token
  static constexpr int kTrial = 3;          // rounds: the first one has masks alone
  static constexpr int kPlainEvery = 128;   // rounds with rows: each loses what was foreseen

  struct Load {
    TreeCost cost;
    Trials trials{kTrial, kPlainEvery};
  };
  Load& load() { return loads[std::bit_width(static_cast<unsigned>(streams))]; }

  MaskHits hits{kMost, kMost, nullptr, kMemory};
  Promises promises;
  int streams = 0;                 // requests that go by it now
  std::map<int, Load> loads = {};  // by requests at once: none, 1, 2 or 3, 4 to 7 ...
};

// The tree of the next round: of all that have no more masks, candidates and rows than the whole
// one, the one that makes most tokens in a second. Its rows are charged as
// MethodStats::share_seconds has it, so that in full batches, where every row costs all others
// time, trees are smaller. What is expected of it is what rates and costs say, less what trees have
// fallen short of that of late; none pays that is not faster than no rows then.
//
// The tokens of a request must not depend on its trees, since time decides about them.
//
// Loop thread only.
class BitaBudget {
 public:
  static constexpr int kChoose = 8;       // rounds from one choice to the next
  static constexpr int kFirstChoice = 2;  // the same as long as a tree of this size is new
  static constexpr double kDear = 2;      // a round that takes so many times what it should is one
  static constexpr double kWorth = 1.05;  // so much faster than without rows it must seem

  // Not `adaptive`: always the whole tree. lore: null: of this request alone.
  BitaBudget(BitaTreeKind kind, int masks, int candidates, bool adaptive,
             std::shared_ptr<BitaLore> lore = nullptr);
  ~BitaBudget() { --lore_->streams; }
  BitaBudget(const BitaBudget&) = delete;
  BitaBudget& operator=(const BitaBudget&) = delete;

  // Of the round that begins now.
  const BitaTree& tree();
  // See MaskHits. Ranks may be those of candidates that the tree had no node for.
  void saw_token(int mask, int rank);
  // A round with so many rows beside the last token's has made so many tokens. `caught_up`: it ran
  // rows of the text, too, a prompt's or after an eviction.
  void saw_round(int rows, int tokens, double seconds, bool caught_up);

 private:
  struct Option {
    BitaTree tree;
    int rows = 0;
  };
  void add_options(BitaTreeKind kind, int masks, int candidates);
  void add(BitaTree tree);
  size_t best();

  static constexpr size_t kSmall = 1;  // the option that trials have, and the first rounds

  const bool adaptive_;
  const std::shared_ptr<BitaLore> lore_;
  const BitaLore::Load* load_ = nullptr;  // that best_ is of
  std::vector<Option> options_;           // [0]: no rows at all; the last one: the whole tree
  size_t now_ = 0, best_ = 0;             // best_: as far as is known
  double expected_ = 0;         // tokens of a pass of options_[best_]; 0: costs are not known
  int until_choice_ = kChoose;  // rounds
  bool foresees_ = false;       // the round before had masks
  bool plain_next_ = false;     // whatever is best: for the round's cost to be known
  MaskHits hits_;
};

}  // namespace tandem
