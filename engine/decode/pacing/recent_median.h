#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// The median of the last Values values: one disturbed value does not move it, and its bias does
// not depend on the number of values. Of an even number of values, the lower of the two in the
// middle.
template <size_t Values = 5>
class RecentMedian {
 public:
  void observe(double x) { last_[count_++ % last_.size()] = x; }
  void clear() { count_ = 0; }
  void scale(double factor) {
    for (double& value : last_) value *= factor;
  }
  bool empty() const { return count_ == 0; }
  double value() const {  // 0: none
    std::array<double, Values> values = last_;
    const size_t n = std::min(count_, values.size());
    if (n == 0) return 0;
    std::nth_element(values.begin(), values.begin() + (n - 1) / 2, values.begin() + n);
    return values[(n - 1) / 2];
  }
  void visit(SavedNumbers* saved, size_t least = 0) {  // values
    constexpr size_t kMost = size_t{1} << 50;
    saved->visit(&count_, least, kMost);
    for (double& value : last_) saved->visit(&value);
  }

 private:
  std::array<double, Values> last_{};
  size_t count_ = 0;
};

}  // namespace tandem
