#include "engine/decode/pacing/tree_size.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tandem {

TreeSize::TreeSize(BitaTreeKind kind, int masks, int candidates, Pace pace,
                   std::shared_ptr<AcceptanceStats> stats)
    : fixed_(pace == Pace::kFixed),
      stats_(!fixed_ && stats ? std::move(stats) : std::make_shared<AcceptanceStats>()),
      shared_(stats_->trees),
      acceptance_(masks, candidates, &shared_.acceptance) {
  TANDEM_CHECK(masks <= TreeStats::kMost && candidates <= TreeStats::kMost);
  ++shared_.streams;
  if (fixed_) {
    add(make_bita_tree(kind, masks, candidates));
    return;
  }
  add({});
  add_options(kind, masks, candidates);
  if (kind == BitaTreeKind::kEfficient) add_options(BitaTreeKind::kSpine, masks, candidates);
  std::ranges::sort(options_, {}, &Option::rows);
  best_ = best();
}

void TreeSize::add(BitaTree tree) {
  const int rows = tree.rows();
  options_.push_back({std::move(tree), rows});
}

void TreeSize::add_options(BitaTreeKind kind, int masks, int candidates) {
  const bool is_chain = kind == BitaTreeKind::kChain || kind == BitaTreeKind::kStraightforward;
  for (int m = 1; m <= masks; ++m) {
    for (int k = 1; k <= (is_chain ? 1 : candidates); ++k) {
      const bool is_between = k > 3 && k % 4 != 0;  // hardly differs from its neighbors
      if (!is_between || k == candidates) add(make_bita_tree(kind, m, k));
    }
  }
}

size_t TreeSize::best() {
  load_ = &shared_.load();
  const CostModel& cost = load_->cost;
  if (!cost.known()) return kSmall;
  acceptance_.estimate();
  const double yield = std::min(1.0, shared_.yield.rate(1, kYieldWeight));
  size_t best = 0;
  double fastest = kWorth / cost.plain() / yield;
  const int reach = cost.reach();
  for (size_t i = 1; i < options_.size() && options_[i].rows <= reach; ++i) {
    const double seconds = cost.curve(options_[i].rows);
    const int most = 1 + options_[i].tree.root_masks;  // tokens
    if (most < fastest * seconds) continue;
    const double tokens = expected_tokens(options_[i].tree, acceptance_);
    if (tokens < fastest * seconds) continue;
    fastest = tokens / seconds;
    expected_ = tokens;
    best = i;
  }
  return best;
}

const BitaTree& TreeSize::tree() {
  if (!fixed_) {
    if (load_ != &shared_.load()) best_ = best();
    now_ = load_->exploration.in_trial() ? kSmall : plain_next_ ? 0 : best_;
  }
  return options_[now_].tree;
}

void TreeSize::observe_token(int mask, int rank) {
  if (fixed_) return;
  shared_.acceptance.observe(mask, rank, acceptance_.candidates());
  acceptance_.observe(mask, rank, acceptance_.candidates());
}

void TreeSize::observe_round(int rows, int tokens, double seconds, bool caught_up) {
  if (fixed_) return;
  auto& [cost, exploration] = shared_.load();
  const bool dear = rows > 0 && cost.known() && seconds > kDear * cost.curve(rows);
  if (!caught_up) {
    // Without masks in the previous round there were no candidates.
    if (now_ > 0 && now_ == best_ && predicted_ && expected_ > 0) {
      shared_.yield.observe(tokens, expected_, kYieldMemory);
    }
    cost.observe(rows, seconds);
  }
  predicted_ = rows > 0;
  const bool in_trial = exploration.in_trial();
  if (--until_choice_ <= 0 || in_trial || dear) {
    best_ = best();
    until_choice_ = cost.known(options_[best_].rows) ? kChoose : kFirstChoice;
  }
  const double lost = caught_up ? 0 : cost.lost(tokens, seconds);
  const Exploration::Round next = exploration.observe(rows > 0, lost, best_ > 0, shared_.streams);
  plain_next_ = next == Exploration::Round::kPlain;
  if (next == Exploration::Round::kTrial && !in_trial) {
    shared_.acceptance.discount();
    acceptance_.discount();
    shared_.yield.scale(kYieldTrial);
  }
}

}  // namespace tandem
