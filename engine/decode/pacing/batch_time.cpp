#include "engine/decode/pacing/batch_time.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace tandem {

double BatchTime::Size::seconds() const {
  std::array<double, 5> values = last;
  const size_t n = std::min(count, values.size());
  std::nth_element(values.begin(), values.begin() + (n - 1) / 2, values.begin() + n);
  return values[(n - 1) / 2];
}

// Each number up to 8 is a size, and each power of two above has four.
int BatchTime::size_of(int rows) {
  return rows <= 8 ? rows : static_cast<int>(std::floor(4 * std::log2(rows))) - 3;
}

void BatchTime::observe(int rows, double seconds) {
  Size& size = sizes_[size_of(rows)];
  if (++batches_ - size.seen > kOld) size.count = 0;
  size.seen = batches_;
  size.rows = size.count == 0 ? rows : kMemory * size.rows + (1 - kMemory) * rows;
  size.last[size.count++ % size.last.size()] = seconds;
}

void BatchTime::visit(SavedNumbers* saved) {
  constexpr size_t kMostSizes = 200;
  constexpr int kLargestSize = 200;
  constexpr size_t kMostCount = size_t{1} << 50;
  saved->visit(&sizes_, kMostSizes, kLargestSize, [&](Size* size) {
    saved->visit(&size->rows, 1);
    saved->visit(&size->count, size_t{1}, kMostCount);
    for (double& seconds : size->last) saved->visit(&seconds);
  });
  // Means of rows lie within their size, and lines between them need a width.
  double rows = 0;
  for (const auto& [_, size] : sizes_) saved->require(size.rows > std::exchange(rows, size.rows));
}

double BatchTime::seconds(double rows) const {
  const Size& least = sizes_.begin()->second;
  if (sizes_.size() == 1 || rows < least.rows) {
    return least.seconds() * (rows + kFreeRows) / (least.rows + kFreeRows);
  }
  // The line through the two sizes around `rows`, or the nearest two.
  auto above = sizes_.begin();
  double low_rows = above->second.rows, low = above->second.seconds();
  const double least_row = low / (low_rows + kFreeRows);
  const auto faded = [&](const Size& size) {
    const double cheap = low + least_row * (size.rows - low_rows);
    const double more = std::max(0.0, size.seconds() - cheap);
    const auto age = static_cast<double>(batches_ - size.seen);
    return std::max(low, more > 0 ? cheap + more * std::exp2(-age / kFading) : size.seconds());
  };
  for (++above; std::next(above) != sizes_.end() && above->second.rows < rows; ++above) {
    low = faded(above->second);
    low_rows = above->second.rows;
  }
  const double high = faded(above->second);
  const double slope = (high - low) / (above->second.rows - low_rows);
  return std::max(0.0, low + slope * (rows - low_rows));
}

double BatchTime::row(double rows) const {
  const double more = std::max(2.0, rows / 4);
  return (seconds(rows + more) - seconds(rows)) / more;
}

}  // namespace tandem
