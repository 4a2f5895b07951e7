// How large a tree pays? From none up, by what masks foresee and what rows cost.
#pragma once

#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/payoff.h"

namespace tandem {

// How often the candidates of masks are right where those before them were: of m_{i + 1} the one of
// each rank, as far as tokens have shown. What a mask has not shown yet is taken to be a little
// worse than at the mask before it.
class MaskHits {
 public:
  static constexpr double kMemory = 0.98;  // a token's weight against the one after it
  static constexpr double kDoubt = 2;      // tokens that what is assumed at first counts for
  static constexpr double kFirst = 0.5;    // the first mask's best candidate, at first
  static constexpr double kNext = 0.7;     // of the mask before it; of the rank before it: 1/4
  static constexpr double kNextRank = 0.25;

  MaskHits(int masks, int candidates);

  // The token that m_{mask + 1} had foreseen has come: its candidate `rank`, or -1: none of them.
  void saw(int mask, int rank);
  double rate(int mask, int rank) const {  // in [0, 1]; over the ranks: at most 1
    return rates_[static_cast<size_t>(mask)][static_cast<size_t>(rank)];
  }
  // From here on what was seen so far says half as much.
  void doubt();
  int masks() const { return static_cast<int>(rates_.size()); }
  int candidates() const { return static_cast<int>(rates_[0].size()); }

 private:
  void estimate();

  struct Seen {
    double tokens = 0;
    std::vector<double> hits;  // by rank
  };
  std::vector<Seen> seen_;
  std::vector<std::vector<double>> rates_;
};

// Tokens of a pass when every pass has this tree: as long as masks hang on what is accepted last,
// those of the next tree are fresh; else they are what is left of the masks above it.
double expected_tokens(const BitaTree& tree, const MaskHits& hits);

// The tree of the next round: of all that have no more masks, candidates and rows than the whole
// one, the one that makes most tokens in a second. Its rows are charged as
// MethodStats::share_seconds has it, so that in full batches, where every row costs all others
// time, trees are smaller.
//
// The tokens of a request must not depend on its trees, since time decides about them.
class BitaBudget {
 public:
  static constexpr int kTrial = 3;         // rounds: the first one has masks alone
  static constexpr int kPlainEvery = 128;  // rounds with rows: what is foreseen is lost with each
  static constexpr int kChoose = 8;        // rounds from one choice to the next
  static constexpr double kWorth = 1.05;   // so much faster than without rows it must seem

  // Not `adaptive`: always the whole tree.
  BitaBudget(BitaTreeKind kind, int masks, int candidates, bool adaptive);

  const BitaTree& tree() const { return options_[now_].tree; }
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
  size_t best() const;

  static constexpr size_t kSmall = 1;  // the option that trials have, and the first rounds

  const bool adaptive_;
  std::vector<Option> options_;  // [0]: no rows at all; the last one: the whole tree
  size_t now_ = 0, best_ = 0;    // best_: as far as is known
  int until_choice_ = 0;         // rounds
  MaskHits hits_;
  RoundCost cost_;
  Trials trials_{kTrial, kPlainEvery};
};

}  // namespace tandem
