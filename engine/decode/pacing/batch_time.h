#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "engine/decode/pacing/recent_median.h"
#include "engine/decode/pacing/saved_numbers.h"

namespace tandem {

// The time of a model's batches by their rows, learned from recent batches of all requests.
//
// A batch reads the weights once, so a few more rows may be free and many are not. The estimate is
// piecewise linear through the median times of batches of similar size, and does not decrease with
// the rows. Without new batches, the time of a size fades towards that of cheap rows: a size that
// was slow for a while would else never be used again.
//
// A processor's clock and its memory change speed within seconds. Times of sizes are therefore kept
// relative to the present speed. Otherwise the difference between two sizes would be that of two
// moments.
//
// Loop thread only.
class BatchTime {
 public:
  void observe(int rows, double seconds);  // of a batch; rows >= 1

  bool known() const { return !sizes_.empty(); }
  // Of a batch with `rows` rows, which may be a mean. REQUIRES: known().
  double seconds(double rows) const;
  // That `more` rows add to a batch of `rows`.
  double added(double rows, double more) const;
  // That one more row adds, in the mean of the next few: differences of medians are noisy.
  double row(double rows) const { return added(rows, few(rows)) / few(rows); }

  void visit(SavedNumbers* saved);

 private:
  // Reading the weights costs as much as about this many rows. Used below the smallest known size.
  static constexpr double kFreeRows = 8;
  static constexpr double kMemory = 0.8;  // of a batch's rows, against the next one

  static constexpr double kFading = 256;  // batches until half of the difference is left
  static constexpr int64_t kOld = 128;    // batches

  // Larger batches have prompts. Their times vary with the context, and do not show the speed.
  static constexpr int kMostOfSpeed = 64;  // rows

  // From this size on, a row costs at least as much as the half of the rows before it, in the mean.
  // Larger batches have prompts, whose rows cost less.
  static constexpr double kLinear = 24;  // rows

  // An old median does not outweigh a new value.
  struct Size {
    double rows = 0;
    RecentMedian<9> seconds;  // at speed 1; more than of slowness_, which changes first
    int64_t seen = 0;         // in this batch
  };
  static int size_of(int rows);
  static double few(double rows) { return std::max(4.0, rows / 2); }
  double at_speed_1(double rows) const;  // seconds

  std::map<int, Size> sizes_;  // by size_of()
  // Seconds of batches, relative to those at speed 1. An even number of values: where each second
  // batch is of a size that has become slower, the median does not change from batch to batch.
  RecentMedian<6> slowness_;
  double now_ = 1;  // the last value of slowness_
  int64_t batches_ = 0;
};

// The batches of a model now.
struct ModelLoad {
  // Requests whose large model it is: running ones, and those that wait for admission.
  int sequences = 1;
  const BatchTime* time = nullptr;  // null: unknown
};

}  // namespace tandem
