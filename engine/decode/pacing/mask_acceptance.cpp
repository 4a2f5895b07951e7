#include "engine/decode/pacing/mask_acceptance.h"

#include <utility>

namespace tandem {
namespace {

constexpr int kPasses = 12;  // until the shares of `spent` have nearly converged

// A pass whose candidates come from a group with `spent` masks used up.
struct Step {
  double tokens = 1;
  std::vector<double> next;  // probability that the next pass begins with this many spent
};

// Masks used up where a pass ends at `node`: none of its own, or the distance to the group above.
int spent_at(const BitaTree& tree, int node) {
  int ahead = 0;
  for (; node != BitaTree::kRoot && tree.masks(node) == 0; node = tree.at(node).parent) ++ahead;
  return ahead;
}

Step step_of(const BitaTree& tree, const MaskAcceptance& acceptance, int spent) {
  Step step;
  step.next.resize(static_cast<size_t>(tree.root_masks) + 1);
  std::vector<double> chance(static_cast<size_t>(tree.size()));  // that a node is accepted
  std::vector<double> ends = chance;                             // and no child of it
  double root_ends = 1;
  for (int i = 0; i < tree.size(); ++i) {
    const BitaTree::Node& node = tree.at(i);
    const int mask = spent + node.depth - 1;
    if (mask >= tree.root_masks) continue;
    const bool of_root = node.parent == BitaTree::kRoot;
    const auto parent = static_cast<size_t>(node.parent);
    const double p = (of_root ? 1 : chance[parent]) * acceptance.rate(mask, node.rank);
    chance[static_cast<size_t>(i)] = ends[static_cast<size_t>(i)] = p;
    (of_root ? root_ends : ends[parent]) -= p;
    step.tokens += p;
  }
  step.next[0] += root_ends;
  for (int i = 0; i < tree.size(); ++i) {
    step.next[static_cast<size_t>(spent_at(tree, i))] += ends[static_cast<size_t>(i)];
  }
  return step;
}

}  // namespace

MaskAcceptance::MaskAcceptance(int masks, int candidates, const MaskAcceptance* shared,
                               double memory)
    : shared_(shared), memory_(memory) {
  const auto ranks = static_cast<size_t>(candidates);
  observed_.assign(static_cast<size_t>(masks), std::vector<AcceptanceEstimator>(ranks));
  rates_.assign(observed_.size(), std::vector<double>(ranks));
  estimate();
}

void MaskAcceptance::observe(int mask, int rank, int candidates) {
  std::vector<AcceptanceEstimator>& ranks = observed_[static_cast<size_t>(mask)];
  for (int r = 0; r < candidates; ++r) ranks[static_cast<size_t>(r)].observe(r == rank, memory_);
  estimate();
}

void MaskAcceptance::discount() {
  for (std::vector<AcceptanceEstimator>& ranks : observed_) {
    for (AcceptanceEstimator& e : ranks) e.scale(0.5);
  }
  estimate();
}

void MaskAcceptance::visit(SavedNumbers* saved) {
  for (std::vector<AcceptanceEstimator>& ranks : observed_) {
    for (AcceptanceEstimator& e : ranks) e.visit(saved);
  }
  estimate();
}

void MaskAcceptance::estimate() {
  const double weight = shared_ != nullptr ? kSharedWeight : kWeight;
  for (size_t i = 0; i < observed_.size(); ++i) {
    double first = kFirst;
    for (size_t r = 0; r < rates_[i].size(); ++r, first *= kNextRank) {
      const double own = i > 0 ? kNext * rates_[i - 1][r] : first;
      const double prior = shared_ != nullptr ? shared_->rates_[i][r] : own;
      rates_[i][r] = observed_[i][r].rate(prior, weight);
    }
  }
}

double expected_tokens(const BitaTree& tree, const MaskAcceptance& acceptance) {
  std::vector<Step> steps;
  for (int spent = 0; spent <= tree.root_masks; ++spent) {
    steps.push_back(step_of(tree, acceptance, spent));
  }
  std::vector<double> share(steps.size());
  share[0] = 1;
  double tokens = 0;
  // The mean over the second half of the passes.
  for (int pass = 0; pass < 2 * kPasses; ++pass) {
    std::vector<double> after(share.size());
    for (size_t spent = 0; spent < steps.size(); ++spent) {
      if (pass >= kPasses) tokens += share[spent] * steps[spent].tokens / kPasses;
      for (size_t n = 0; n < after.size(); ++n) after[n] += share[spent] * steps[spent].next[n];
    }
    share = std::move(after);
  }
  return tokens;
}

}  // namespace tandem
