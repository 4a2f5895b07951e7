#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/pacing/pace.h"

namespace tandem {

// Chooses the BiTA tree of the next round: of all trees with at most the configured masks and
// candidates, or none, the one with most expected tokens per second. Rows are charged as
// MethodStats::share_seconds does, so trees are smaller in full batches. Expected tokens follow
// from the masks' acceptance, less what recent trees fell short of.
//
// Time decides, so this requires that trees cannot change tokens. Loop thread only.
class TreeSize {
 public:
  static constexpr int kChoose = 8;       // rounds from one choice to the next
  static constexpr int kFirstChoice = 2;  // the same while a tree of this size is new
  static constexpr double kDear = 2;  // a round this many times slower than expected: choose anew
  static constexpr double kWorth = 1.05;  // required gain over a round without rows

  // kFixed: always the whole tree. kAdaptive is the same as kFastest. stats: may be null.
  TreeSize(BitaTreeKind kind, int masks, int candidates, Pace pace,
           std::shared_ptr<AcceptanceStats> stats = nullptr);
  ~TreeSize() { --shared_.streams; }
  TreeSize(const TreeSize&) = delete;
  TreeSize& operator=(const TreeSize&) = delete;

  // Of the round that begins now.
  const BitaTree& tree();
  // See MaskAcceptance. The rank may be that of a candidate without a node in the tree.
  void observe_token(int mask, int rank);
  // A round with `rows` rows beyond the last token's made `tokens` tokens. caught_up: it also ran
  // rows of the text, of a prompt or after a preemption.
  void observe_round(int rows, int tokens, double seconds, bool caught_up);

 private:
  struct Option {
    BitaTree tree;
    int rows = 0;
  };
  void add_options(BitaTreeKind kind, int masks, int candidates);
  void add(BitaTree tree);
  size_t best();

  static constexpr size_t kSmall = 1;           // the option of trials and of the first rounds
  static constexpr double kYieldWeight = 8;     // tokens made as expected, at first
  static constexpr double kYieldMemory = 0.99;  // of a round
  static constexpr double kYieldTrial = 0.75;   // of rounds before a trial

  const bool fixed_;
  const std::shared_ptr<AcceptanceStats> stats_;
  TreeStats& shared_;
  const TreeStats::Load* load_ = nullptr;  // of best_
  std::vector<Option> options_;            // [0]: no rows; the last one: the whole tree
  size_t now_ = 0, best_ = 0;
  double expected_ = 0;         // tokens of a pass of options_[best_]; 0: costs are unknown
  int until_choice_ = kChoose;  // rounds
  bool predicted_ = false;      // the previous round had masks
  bool plain_next_ = false;     // to measure its cost
  MaskAcceptance acceptance_;
};

}  // namespace tandem
