#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// The time of a model's batches by their rows, learned from recent batches of all requests.
//
// A batch reads the weights once, so a few more rows may be free and many are not. The estimate is
// piecewise linear through the median times of batches of similar size, and does not decrease with
// the rows. Without new batches, the time of a size fades towards that of cheap rows: a size that
// was slow for a while would else never be used again.
//
// Loop thread only.
class BatchTime {
 public:
  void observe(int rows, double seconds);  // of a batch; rows >= 1

  bool known() const { return !sizes_.empty(); }
  // Of a batch with `rows` rows, which may be a mean. REQUIRES: known().
  double seconds(double rows) const;
  // That one more row adds.
  double row(double rows) const;

  void visit(SavedNumbers* saved);

 private:
  // Reading the weights costs as much as about this many rows. Used below the smallest known size.
  static constexpr double kFreeRows = 8;
  static constexpr double kMemory = 0.8;  // of a batch's rows, against the next one

  static constexpr double kFading = 256;  // batches until half of the difference is left
  static constexpr int64_t kOld = 128;    // batches

  // The median of the last few values, so that one disturbed batch does not move it. An old median
  // does not outweigh a new value.
  struct Size {
    double rows = 0;
    std::array<double, 5> last{};
    size_t count = 0;
    int64_t seen = 0;  // in this batch

    double seconds() const;
  };
  static int size_of(int rows);

  std::map<int, Size> sizes_;  // by size_of()
  int64_t batches_ = 0;
};

// The batches of a model now.
struct ModelLoad {
  // Requests whose large model it is: running ones, and those that wait for admission.
  int sequences = 1;
  const BatchTime* time = nullptr;  // null: unknown
};

}  // namespace tandem
