#include "engine/decode/bita_budget.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/check.h"

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

MaskHits::MaskHits(int masks, int candidates, const MaskHits* others, double memory)
    : others_(others), memory_(memory) {
  const auto ranks = static_cast<size_t>(candidates);
  seen_.assign(static_cast<size_t>(masks), std::vector<Seen>(ranks));
  rates_.assign(seen_.size(), std::vector<double>(ranks));
  estimate();
}

void MaskHits::saw(int mask, int rank, int candidates) {
  std::vector<Seen>& seen = seen_[static_cast<size_t>(mask)];
  for (int r = 0; r < candidates; ++r) {
    Seen& s = seen[static_cast<size_t>(r)];
    s.tokens = memory_ * s.tokens + 1;
    s.hits = memory_ * s.hits + (r == rank ? 1 : 0);
  }
  estimate();
}

void MaskHits::doubt() {
  for (std::vector<Seen>& ranks : seen_) {
    for (Seen& seen : ranks) {
      seen.tokens /= 2;
      seen.hits /= 2;
    }
  }
  estimate();
}

void MaskHits::estimate() {
  const double doubt = others_ != nullptr ? kBelieved : kDoubt;
  for (size_t i = 0; i < seen_.size(); ++i) {
    double rank = kFirst;
    for (size_t r = 0; r < rates_[i].size(); ++r, rank *= kNextRank) {
      const double guess = i > 0 ? kNext * rates_[i - 1][r] : rank;
      const double assumed = others_ != nullptr ? others_->rates_[i][r] : guess;
      const Seen& seen = seen_[i][r];
      rates_[i][r] = (seen.hits + doubt * assumed) / (seen.tokens + doubt);
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

void RecentMedian::saw(double x) { last_[seen_++ % kMost] = x; }

double RecentMedian::value() const {
  std::array<double, kMost> some = last_;
  const size_t n = std::min(seen_, kMost);
  if (n == 0) return 0;
  std::nth_element(some.begin(), some.begin() + (n - 1) / 2, some.begin() + n);
  return some[(n - 1) / 2];
}

void TreeCost::saw(int rows, double seconds) {
  for (auto& [_, seen] : seen_) seen.rounds *= kMemory;
  if (rows == 0) return plain_.saw(seconds);
  if (plain_.empty()) return;
  Seen& seen = seen_[rows];
  seen.rounds = std::min(seen.rounds + 1, kMost);
  seen.seconds.saw(seconds);
  rows_ = (1 - kWeight) * rows_ + rows;
  more_ = (1 - kWeight) * more_ + seconds - plain_.value();
}

double TreeCost::bent(int rows, const Seen& seen) const {
  const double more = seen.rounds * (seen.seconds.value() - plain_.value());
  return std::max(0.0, (more + kDoubt * rows * per_row()) / (seen.rounds + kDoubt));
}

double TreeCost::with(int rows) const {
  if (rows == 0 || seen_.empty()) return plain() + rows * per_row();
  const auto above = seen_.lower_bound(rows);
  const bool none_below = above == seen_.begin();
  const int low = none_below ? 0 : std::prev(above)->first;
  const double cost = none_below ? 0 : bent(low, std::prev(above)->second);
  // Beyond all that was seen rows are as dear as the last ones.
  if (above == seen_.end()) return plain() + cost * rows / low;
  const double share = static_cast<double>(rows - low) / (above->first - low);
  return plain() + (1 - share) * cost + share * bent(above->first, above->second);
}

double TreeCost::lost(int tokens, double seconds) const {
  return plain_.value() > 0 ? seconds / plain_.value() - tokens : 0;
}

int TreeCost::reach() const {
  int largest = 0;
  for (const auto& [rows, seen] : seen_) {
    if (seen.rounds >= 1) largest = rows;
  }
  return 2 * largest + 2;
}

bool TreeCost::seen(int rows) const {
  const auto at = seen_.find(rows);
  return at != seen_.end() && at->second.rounds >= kSeen;
}

void Promises::saw(int tokens, double expected) {
  made_ = kMemory * made_ + tokens;
  expected_ = kMemory * expected_ + expected;
}

BitaBudget::BitaBudget(BitaTreeKind kind, int masks, int candidates, bool adaptive,
                       std::shared_ptr<BitaLore> lore)
    : adaptive_(adaptive),
      lore_(adaptive && lore ? std::move(lore) : std::make_shared<BitaLore>()),
      hits_(masks, candidates, &lore_->hits) {
  TANDEM_CHECK(masks <= BitaLore::kMost && candidates <= BitaLore::kMost);
  ++lore_->streams;
  if (!adaptive) {
    add(make_bita_tree(kind, masks, candidates));
    return;
  }
  add({});
  add_options(kind, masks, candidates);
  // Masks at the best candidates alone.
  if (kind == BitaTreeKind::kEfficient) add_options(BitaTreeKind::kSpine, masks, candidates);
  std::ranges::sort(options_, {}, &Option::rows);
  best_ = best();
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

size_t BitaBudget::best() {
  load_ = &lore_->load();
  const TreeCost& cost = load_->cost;
  if (!cost.known()) return kSmall;
  hits_.estimate();
  const double kept = lore_->promises.kept();
  size_t best = 0;
  double fastest = kWorth / cost.plain() / kept;
  const int reach = cost.reach();
  for (size_t i = 1; i < options_.size() && options_[i].rows <= reach; ++i) {
    const double seconds = cost.with(options_[i].rows);
    if (1 + options_[i].tree.root_masks < fastest * seconds) continue;  // whatever is foreseen
    const double tokens = expected_tokens(options_[i].tree, hits_);
    if (tokens < fastest * seconds) continue;
    fastest = tokens / seconds;
    expected_ = tokens;
    best = i;
  }
  return best;
}

const BitaTree& BitaBudget::tree() {
  if (adaptive_) {
    if (load_ != &lore_->load()) best_ = best();
    now_ = load_->trials.trying() ? kSmall : plain_next_ ? 0 : best_;
  }
  return options_[now_].tree;
}

void BitaBudget::saw_token(int mask, int rank) {
  if (!adaptive_) return;
  lore_->hits.saw(mask, rank, hits_.candidates());
  hits_.saw(mask, rank, hits_.candidates());
}

void BitaBudget::saw_round(int rows, int tokens, double seconds, bool caught_up) {
  if (!adaptive_) return;
  auto& [cost, trials] = lore_->load();
  const bool dear = rows > 0 && cost.known() && seconds > kDear * cost.with(rows);
  if (!caught_up) {
    // (A round behind one without masks has no candidates.)
    if (now_ > 0 && now_ == best_ && foresees_ && expected_ > 0) {
      lore_->promises.saw(tokens, expected_);
    }
    cost.saw(rows, seconds);
  }
  foresees_ = rows > 0;
  const bool trying = trials.trying();
  if (--until_choice_ <= 0 || trying || dear) {
    best_ = best();
    until_choice_ = cost.seen(options_[best_].rows) ? kChoose : kFirstChoice;
  }
  const double lost = caught_up ? 0 : cost.lost(tokens, seconds);
  const Trials::Next next = trials.saw(rows > 0, lost, best_ > 0, lore_->streams);
  plain_next_ = next == Trials::Next::kPlain;
  if (next == Trials::Next::kTrial && !trying) {
    lore_->hits.doubt();
    hits_.doubt();
    lore_->promises.doubt();
  }
}

}  // namespace tandem
