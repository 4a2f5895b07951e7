#include "engine/decode/pacing/batch_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

namespace tandem {

// Each number up to 8 is a size, and each power of two above has four.
int BatchTime::size_of(int rows) {
  return rows <= 8 ? rows : static_cast<int>(std::floor(4 * std::log2(rows))) - 3;
}

void BatchTime::observe(int rows, double seconds) {
  Size& size = sizes_[size_of(rows)];
  if (++batches_ - size.seen > kOld) size.seconds.clear();
  size.seen = batches_;
  const bool first = size.seconds.empty();
  if (!first && rows <= kMostOfSpeed) {
    const double expected = at_speed_1(rows);
    if (expected > 0 && seconds > 0) slowness_.observe(seconds / expected);
    if (!slowness_.empty()) now_ = slowness_.value();
  }
  size.rows = first ? rows : kMemory * size.rows + (1 - kMemory) * rows;
  size.seconds.observe(seconds / now_);
}

void BatchTime::visit(SavedNumbers* saved) {
  constexpr size_t kMostSizes = 200;
  constexpr int kLargestSize = 200;
  for (auto& [_, size] : sizes_) size.seconds.scale(now_);
  slowness_.clear();
  now_ = 1;
  saved->visit(&sizes_, kMostSizes, kLargestSize, [&](Size* size) {
    saved->visit(&size->rows, 1);
    size->seconds.visit(saved, 1);
  });
  // Means of rows lie within their size, and lines between them need a width.
  double rows = 0;
  for (const auto& [_, size] : sizes_) saved->require(size.rows > std::exchange(rows, size.rows));
}

double BatchTime::seconds(double rows) const { return now_ * at_speed_1(rows); }

double BatchTime::at_speed_1(double rows) const {
  const Size& least = sizes_.begin()->second;
  if (sizes_.size() == 1 || rows < least.rows) {
    return least.seconds.value() * (rows + kFreeRows) / (least.rows + kFreeRows);
  }
  // The line through the two sizes around `rows`, or the nearest two.
  auto above = sizes_.begin();
  double low_rows = above->second.rows, low = above->second.seconds.value();
  const double least_row = low / (low_rows + kFreeRows);
  const auto faded = [&](const Size& size) {
    const double cheap = low + least_row * (size.rows - low_rows);
    const double more = std::max(0.0, size.seconds.value() - cheap);
    const auto age = static_cast<double>(batches_ - size.seen);
    return std::max(low,
                    more > 0 ? cheap + more * std::exp2(-age / kFading) : size.seconds.value());
  };
  for (++above; std::next(above) != sizes_.end() && above->second.rows < rows; ++above) {
    low = faded(above->second);
    low_rows = above->second.rows;
  }
  const double high = faded(above->second);
  const double slope = (high - low) / (above->second.rows - low_rows);
  return std::max(0.0, low + slope * (rows - low_rows));
}

double BatchTime::added(double rows, double more) const {
  const double now = seconds(rows), add = seconds(rows + more) - now;
  if (rows < kLinear) return add;
  return std::max(add, more * (now - seconds(rows / 2)) / (rows / 2));
}

}  // namespace tandem
