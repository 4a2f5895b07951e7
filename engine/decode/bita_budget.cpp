#include "engine/decode/bita_budget.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

constexpr int kPasses = 12;  // until the shares of what masks are left for a tree hardly change

// Of a pass whose candidates come from a group of which `spent` masks are used up: the tokens that
// it makes, and how likely the next one begins with how many spent.
struct Step {
  double tokens = 1;
  std::vector<double> next;  // by masks spent
};

// Masks that are spent where a pass ends at `node`: its own are fresh, else those above it.
int spent_at(const BitaTree& tree, int node) {
  int ahead = 0;
  for (; node != BitaTree::kRoot && tree.masks(node) == 0; node = tree.at(node).parent) ++ahead;
  return ahead;
}

Step step_of(const BitaTree& tree, const MaskHits& hits, int spent) {
  Step step;
  step.next.resize(static_cast<size_t>(tree.root_masks) + 1);
  std::vector<double> chance(static_cast<size_t>(tree.size()));  // that a node is accepted
  std::vector<double> ends = chance;                             // and none below it
  double root_ends = 1;
  for (int i = 0; i < tree.size(); ++i) {
    const BitaTree::Node& node = tree.at(i);
    const int mask = spent + node.depth - 1;
    if (mask >= tree.root_masks) continue;
    const bool of_root = node.parent == BitaTree::kRoot;
    const auto parent = static_cast<size_t>(node.parent);
    const double p = (of_root ? 1 : chance[parent]) * hits.rate(mask, node.rank);
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

MaskHits::MaskHits(int masks, int candidates) {
  Seen none;
  none.hits.resize(static_cast<size_t>(candidates));
  seen_.assign(static_cast<size_t>(masks), none);
  rates_.assign(seen_.size(), none.hits);
  estimate();
}

void MaskHits::saw(int mask, int rank) {
  Seen& seen = seen_[static_cast<size_t>(mask)];
  seen.tokens = kMemory * seen.tokens + 1;
  for (double& hits : seen.hits) hits *= kMemory;
  if (rank >= 0) ++seen.hits[static_cast<size_t>(rank)];
  estimate();
}

void MaskHits::doubt() {
  for (Seen& seen : seen_) {
    seen.tokens /= 2;
    for (double& hits : seen.hits) hits /= 2;
  }
  estimate();
}

void MaskHits::estimate() {
  for (size_t i = 0; i < seen_.size(); ++i) {
    double rank = kFirst;
    for (size_t r = 0; r < rates_[i].size(); ++r, rank *= kNextRank) {
      const double assumed = i > 0 ? kNext * rates_[i - 1][r] : rank;
      rates_[i][r] = (seen_[i].hits[r] + kDoubt * assumed) / (seen_[i].tokens + kDoubt);
    }
  }
}

double expected_tokens(const BitaTree& tree, const MaskHits& hits) {
  std::vector<Step> steps;
  for (int spent = 0; spent <= tree.root_masks; ++spent)
    steps.push_back(step_of(tree, hits, spent));
  std::vector<double> share(steps.size());
  share[0] = 1;
  double tokens = 0;
  // The mean of many passes, the first ones left out.
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

BitaBudget::BitaBudget(BitaTreeKind kind, int masks, int candidates, bool adaptive)
    : adaptive_(adaptive), hits_(masks, candidates) {
  if (!adaptive) {
    add(make_bita_tree(kind, masks, candidates));
    return;
  }
  add({});
  add_options(kind, masks, candidates);
  // Masks at the best candidates alone.
  if (kind == BitaTreeKind::kEfficient) add_options(BitaTreeKind::kSpine, masks, candidates);
  std::ranges::sort(options_, {}, &Option::rows);
  best_ = now_ = kSmall;
}

void BitaBudget::add(BitaTree tree) {
  const int rows = tree.rows();
  options_.push_back({std::move(tree), rows});
}

void BitaBudget::add_options(BitaTreeKind kind, int masks, int candidates) {
  const bool is_chain = kind == BitaTreeKind::kChain || kind == BitaTreeKind::kStraightforward;
  for (int m = 1; m <= masks; ++m) {
    for (int k = 1; k <= (is_chain ? 1 : candidates); ++k) {
      const bool is_between = k > 3 && k % 4 != 0;  // which would tell little more
      if (!is_between || k == candidates) add(make_bita_tree(kind, m, k));
    }
  }
}

size_t BitaBudget::best() const {
  if (!cost_.known()) return kSmall;
  size_t best = 0;
  double fastest = kWorth / cost_.plain();
  for (size_t i = 1; i < options_.size(); ++i) {
    const double speed = expected_tokens(options_[i].tree, hits_) / cost_.with(options_[i].rows);
    if (speed < fastest) continue;
    fastest = speed;
    best = i;
  }
  return best;
}

void BitaBudget::saw_token(int mask, int rank) {
  if (adaptive_) hits_.saw(mask, rank);
}

void BitaBudget::saw_round(int rows, int tokens, double seconds, bool caught_up) {
  if (!adaptive_) return;
  if (!caught_up) cost_.saw(rows, seconds);
  if (--until_choice_ <= 0 || trials_.trying()) {
    until_choice_ = kChoose;
    best_ = best();
  }
  const double lost = caught_up ? 0 : cost_.lost(tokens, seconds);
  const bool trying = trials_.trying();
  switch (trials_.saw(rows > 0, lost, best_ > 0)) {
    case Trials::Next::kBest:
      now_ = best_;
      return;
    case Trials::Next::kPlain:
      now_ = 0;
      return;
    case Trials::Next::kTrial:
      now_ = kSmall;
      if (!trying) hits_.doubt();
  }
}

}  // namespace tandem
