#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/pacing/batch_time.h"
#include "engine/decode/pacing/pace.h"

namespace tandem {

// Chooses the BiTA tree of the next round: of all trees with at most the configured masks and
// candidates, or none, the one with most expected tokens per second. Tokens per second are those of
// all requests on the device, where each request with masks has the same tree and others have one
// row. Expected tokens follow from the masks' acceptance, less what recent trees fell short of.
//
// Where no tree seems to pay, one request at a time tries a small tree, for at most kExplored of
// the time.
//
// Time decides, so this requires that trees cannot change tokens. Loop thread only.
class TreeSize {
 public:
  static constexpr int kChoose = 8;       // rounds from one choice to the next
  static constexpr double kDear = 1.25;   // a tree that costs more than was expected: choose anew
  static constexpr double kWorth = 1.05;  // required gain over a round without rows
  static constexpr double kExplored = 0.01;  // share of the time for trees that do not seem to pay

  // kFixed: always the whole tree. kAdaptive is the same as kFastest. stats: may be null.
  TreeSize(BitaTreeKind kind, int masks, int candidates, Pace pace,
           std::shared_ptr<AcceptanceStats> stats = nullptr);
  ~TreeSize() { --shared_.streams; }
  TreeSize(const TreeSize&) = delete;
  TreeSize& operator=(const TreeSize&) = delete;

  // Of the round that begins now.
  const BitaTree& tree(const ModelLoad& load);
  // See MaskAcceptance. The rank may be that of a candidate without a node in the tree.
  void observe_token(int mask, int rank);
  // The round with this tree made `tokens` tokens, at the last load.
  void observe_round(const BitaTree& tree, int tokens);

 private:
  struct Option {
    BitaTree tree;
    int rows = 0;
  };
  void add_options(BitaTreeKind kind, int masks, int candidates);
  void add(BitaTree tree);
  bool timed() const;  // how long batches take is known, and not 0
  int requests() const;
  double seconds(int rows) const;  // of a batch in which each request with masks has such a tree
  double time_of_tree() const;     // of a batch with the chosen tree, relative to one without rows
  // Of all requests, in a batch in which those with masks have `tokens` each.
  double made(double tokens) const;
  size_t best();
  bool tries();

  static constexpr size_t kSmall = 1;           // the option of trials, and while times are unknown
  static constexpr double kYieldWeight = 8;     // tokens accepted as expected, at first
  static constexpr double kYieldMemory = 0.99;  // of a round

  const bool fixed_;
  const std::shared_ptr<AcceptanceStats> stats_;
  TreeStats& shared_;
  std::vector<Option> options_;  // [0]: no rows; the last one: the whole tree
  ModelLoad load_;
  size_t now_ = 0, best_ = 0;
  double expected_ = 0;     // tokens of a pass of options_[best_]; 0: unknown
  int chosen_for_ = 0;      // requests
  double chosen_time_ = 0;  // time_of_tree() when it was chosen
  int until_choice_ = 0;    // rounds
  int trial_ = 0;           // rounds left
  bool predicted_ = false;  // the previous round had masks
  MaskAcceptance acceptance_;
};

}  // namespace tandem
