#pragma once

#include <cstddef>
#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/pacing/acceptance_estimator.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// How often the candidate of each rank of mask m_{i + 1} is right, given that those before it were.
// The prior of a mask is the deployment's estimate, or else a little less than the mask before it.
class MaskAcceptance {
 public:
  static constexpr double kMemory = 0.98;     // of a token, against the next one
  static constexpr double kWeight = 2;        // of the prior, in tokens
  static constexpr double kSharedWeight = 8;  // of `shared` as the prior
  static constexpr double kFirst = 0.5;       // prior of the first mask's best candidate
  static constexpr double kNext = 0.7;        // prior, relative to the mask before it
  static constexpr double kNextRank = 0.25;   // and to the rank before it

  // shared: covers at least as many masks and candidates, and outlives this; may be null.
  MaskAcceptance(int masks, int candidates, const MaskAcceptance* shared = nullptr,
                 double memory = kMemory);

  // The token that m_{mask + 1} predicted is known: its candidate `rank`, or -1: none of the first
  // `candidates`.
  void observe(int mask, int rank, int candidates);
  // In [0, 1]; the sum over the ranks is at most 1.
  double rate(int mask, int rank) const {
    return rates_[static_cast<size_t>(mask)][static_cast<size_t>(rank)];
  }
  // Halves the weight of what was observed.
  void discount();
  // Recomputes the rates, after changes of `shared`.
  void estimate();
  void visit(SavedNumbers* saved);
  int masks() const { return static_cast<int>(rates_.size()); }
  int candidates() const { return static_cast<int>(rates_[0].size()); }

 private:
  const MaskAcceptance* shared_;
  double memory_;
  std::vector<std::vector<AcceptanceEstimator>> observed_;  // by mask and rank
  std::vector<std::vector<double>> rates_;
};

// The mean number of tokens of a pass when every pass has this tree. Where masks hang on the last
// accepted node, the next tree uses them; else it uses the remaining masks of the node above.
double expected_tokens(const BitaTree& tree, const MaskAcceptance& acceptance);

}  // namespace tandem
