// Simulations of mask predictions and of a machine's noise, for tests of tree choices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

#include "engine/decode/bita_tree.h"

namespace tandem {

inline constexpr BitaTreeKind kTreeKinds[] = {
    BitaTreeKind::kEfficient, BitaTreeKind::kSpine, BitaTreeKind::kTriangle,
    BitaTreeKind::kFull,      BitaTreeKind::kChain, BitaTreeKind::kStraightforward};

// SimulatedMasks that are right at the given rates: of m_{i + 1}, the candidate of each rank.
class SimulatedMasks {
 public:
  SimulatedMasks(std::vector<std::vector<double>> rates, uint64_t seed)
      : rates_(std::move(rates)), random_(seed) {}

  // Draws the rank of the right candidate; -1: none is right.
  int rank(int mask) {
    double u = std::uniform_real_distribution()(random_);
    const auto& by_rank = rates_[static_cast<size_t>(mask)];
    for (size_t r = 0; r < by_rank.size(); ++r) {
      u -= by_rank[r];
      if (u < 0) return static_cast<int>(r);
    }
    return -1;
  }

 private:
  std::vector<std::vector<double>> rates_;
  std::mt19937_64 random_;
};

inline int simulated_child(const BitaTree& tree, int node, int rank) {
  for (int i = 0; i < tree.size(); ++i) {
    if (tree.at(i).parent == node && tree.at(i).rank == rank) return i;
  }
  return BitaTree::kRoot;
}

// The candidates that one pass leaves for the next.
struct SimulatedCandidates {
  int depths = 0, spent = 0;
};

struct SimulatedPass {
  int rows = 0, tokens = 1;
};

// Verifies a tree as the method does. Calls `see` for each token that a mask predicted.
template <class See>
SimulatedPass simulate_pass(const BitaTree& whole, SimulatedMasks& masks,
                            SimulatedCandidates* predicted, See see) {
  const BitaTree tree =
      whole.clipped(std::vector<int>(static_cast<size_t>(predicted->depths), 1 << 20), 1 << 20);
  SimulatedPass p;
  p.rows = tree.rows();
  int node = BitaTree::kRoot;
  bool best = true;
  for (int depth = 0; depth < predicted->depths; ++depth) {
    const int rank = masks.rank(predicted->spent + depth);
    if (best) see(predicted->spent + depth, rank);
    const int child = rank < 0 ? BitaTree::kRoot : simulated_child(tree, node, rank);
    if (child == BitaTree::kRoot) break;
    best = best && rank == 0;
    node = child;
    ++p.tokens;
  }
  int ahead = 0;
  for (; node != BitaTree::kRoot && tree.masks(node) == 0; node = tree.at(node).parent) ++ahead;
  *predicted = {std::max(0, tree.masks(node) - ahead), ahead};
  return p;
}

// Time factors of a noisy machine: each round differs, few take twice as long, and all drift
// slowly.
class SimulatedNoise {
 public:
  explicit SimulatedNoise(uint64_t seed) : random_(seed) {}
  double operator()() {
    const double slow = 1 + 0.08 * std::sin(2 * std::numbers::pi * ++rounds_ / 300.0);
    const double each = std::exp(0.08 * std::normal_distribution<double>()(random_));
    return slow * each * (std::uniform_real_distribution()(random_) < 0.02 ? 2 : 1);
  }

 private:
  std::mt19937_64 random_;
  int rounds_ = 0;
};

}  // namespace tandem
