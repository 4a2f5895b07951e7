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

bool TreeSize::timed() const {
  return load_.time != nullptr && load_.time->known() && load_.time->seconds(1) > 0;
}

int TreeSize::requests() const { return std::max(load_.sequences, shared_.streams); }

double TreeSize::seconds(int rows) const {
  return load_.time->seconds(requests() + shared_.streams * rows);
}

double TreeSize::time_of_tree() const {
  return timed() ? seconds(options_[best_].rows) / seconds(0) : 0;
}

double TreeSize::made(double tokens) const { return requests() + shared_.streams * (tokens - 1); }

size_t TreeSize::best() {
  expected_ = 0;
  if (load_.time == nullptr || !load_.time->known()) return kSmall;
  if (!timed()) return options_.size() - 1;  // a virtual clock
  acceptance_.estimate();
  const double yield = std::min(1.0, shared_.yield.rate(1, kYieldWeight));
  size_t best = 0;
  double fastest = kWorth * made(1) / seconds(0);
  for (size_t i = 1; i < options_.size(); ++i) {
    const double needed = fastest * seconds(options_[i].rows);  // tokens
    if (made(1 + options_[i].tree.root_masks) < needed) continue;
    const double tokens = expected_tokens(options_[i].tree, acceptance_);
    const double all = made(1 + yield * (tokens - 1));
    if (all < needed) continue;
    fastest = all / seconds(options_[i].rows);
    expected_ = tokens;
    best = i;
  }
  return best;
}

// A trial of one request, where its tree would pay if all masks were right.
bool TreeSize::tries() {
  const Option& small = options_[kSmall];
  if (made(1 + small.tree.root_masks) * seconds(0) < made(1) * seconds(small.rows)) return false;
  const double more = load_.time->seconds(requests() + small.rows) - seconds(0);
  const double batches = TreeStats::kTrial * more / load_.time->seconds(1);
  if (batches > shared_.unspent) return false;
  shared_.unspent -= batches;
  shared_.acceptance.discount();
  acceptance_.discount();
  trial_ = TreeStats::kTrial;
  return true;
}

const BitaTree& TreeSize::tree(const ModelLoad& load) {
  if (fixed_) return options_[0].tree;
  load_ = load;
  if (--until_choice_ < 0 || requests() != chosen_for_ || time_of_tree() > kDear * chosen_time_) {
    best_ = best();
    chosen_for_ = requests();
    chosen_time_ = time_of_tree();
    until_choice_ = kChoose - 1;
  }
  const bool plain = shared_.begin_round();
  now_ = best_;
  if (timed()) {
    if (best_ == 0 && (trial_ > 0 || tries())) now_ = kSmall;
    if (best_ > 0 && plain) now_ = 0;
  }
  trial_ = std::max(0, trial_ - 1);
  return options_[now_].tree;
}

void TreeSize::observe_token(int mask, int rank) {
  if (fixed_) return;
  shared_.acceptance.observe(mask, rank, acceptance_.candidates());
  acceptance_.observe(mask, rank, acceptance_.candidates());
}

void TreeSize::observe_round(const BitaTree& tree, int tokens) {
  if (fixed_) return;
  // Without masks in the previous round there were no candidates.
  if (now_ > 0 && predicted_) {
    const bool best = now_ == best_ && expected_ > 0;
    const double expected = best ? expected_ : expected_tokens(options_[now_].tree, acceptance_);
    shared_.yield.observe(tokens - 1, expected - 1, kYieldMemory);
  }
  predicted_ = tree.root_masks > 0;
  if (!timed()) return;
  const double batches = seconds(options_[best_].rows) / load_.time->seconds(1);
  shared_.earn(kExplored * batches / shared_.streams);
}

}  // namespace tandem
