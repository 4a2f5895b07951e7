#include "engine/decode/pacing/cost_model.h"

#include <algorithm>
#include <iterator>

namespace tandem {

void CostModel::visit(SavedNumbers* saved) {
  constexpr size_t kMostSizes = 256;
  constexpr int kLargestSize = 1024;
  plain_.visit(saved);
  saved->visit(&rows_);
  saved->visit(&more_, -SavedNumbers::kMost);
  saved->visit(&sizes_, kMostSizes, kLargestSize, [&](Size* size) {
    saved->visit(&size->rounds);
    size->seconds.visit(saved);
  });
  saved->require(sizes_.empty() || sizes_.begin()->first > 0);
}

void CostModel::observe(int rows, double seconds) {
  for (auto& [_, size] : sizes_) size.rounds *= kMemory;
  if (rows == 0) return plain_.observe(seconds);
  if (plain_.empty()) return;
  Size& size = sizes_[rows];
  size.rounds = std::min(size.rounds + 1, kMost);
  size.seconds.observe(seconds);
  rows_ = (1 - kWeight) * rows_ + rows;
  more_ = (1 - kWeight) * more_ + seconds - measured();
}

double CostModel::per_row() const { return rows_ > 0 ? std::max(0.0, more_ / rows_) : 0; }

double CostModel::additional(int rows, const Size& size) const {
  const double more = size.rounds * (size.seconds.value() - measured());
  return std::max(0.0, (more + kDoubt * rows * per_row()) / (size.rounds + kDoubt));
}

double CostModel::curve(int rows) const {
  if (rows == 0 || sizes_.empty()) return line(rows);
  const auto above = sizes_.lower_bound(rows);
  const bool none_below = above == sizes_.begin();
  const int low = none_below ? 0 : std::prev(above)->first;
  const double cost = none_below ? 0 : additional(low, std::prev(above)->second);
  if (above == sizes_.end()) return plain() + cost * rows / low;
  const double share = static_cast<double>(rows - low) / (above->first - low);
  return plain() + (1 - share) * cost + share * additional(above->first, above->second);
}

int CostModel::reach() const {
  int largest = 0;
  for (const auto& [rows, size] : sizes_) {
    if (size.rounds >= 1) largest = rows;
  }
  return 2 * largest + 2;
}

bool CostModel::known(int rows) const {
  const auto at = sizes_.find(rows);
  return at != sizes_.end() && at->second.rounds >= kSeen;
}

double CostModel::lost(int tokens, double seconds) const {
  return measured() > 0 ? seconds / measured() - tokens : 0;
}

}  // namespace tandem
