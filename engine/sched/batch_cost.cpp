#include "engine/sched/batch_cost.h"

#include <algorithm>

namespace tandem {

void BatchCost::observe(int rows, double seconds) {
  if (rows <= 0) return;
  const double weight = std::max(1.0 / ++seen_, kWeight);
  const double dx = 1.0 / rows - x_, dy = seconds / rows - y_;
  x_ += weight * dx;
  y_ += weight * dy;
  xx_ = (1 - weight) * (xx_ + weight * dx * dx);
  xy_ = (1 - weight) * (xy_ + weight * dx * dy);
}

double BatchCost::per_batch() const {
  constexpr double kAlike = 1e-6;  // variance over squared mean: too little for a line
  if (xx_ <= kAlike * x_ * x_) return 0;
  return std::clamp(xy_ / xx_, 0.0, y_ / x_);
}

BatchShares BatchCost::shares(int rows, int works) const {
  if (rows <= 0) return {};
  const double batch = per_batch(), row = std::max(per_row(), 0.0);
  const double all = batch + row * rows;
  if (all <= 0) return {.work = 0, .row = 1, .batch = static_cast<double>(rows)};
  return {.work = batch / works, .row = row, .batch = all};
}

}  // namespace tandem
