// Finds the greatest element of each row of y = x W^T without reading all of W.
//
// A copy of W in 4 bits gives y_c up to |W_c - copy_c| |x| (Cauchy-Schwarz) and rounding. The panel
// with the greatest y_c of the copy is multiplied with W, which gives a lower bound. Panels with
// columns that may reach it are multiplied with W, too.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/columns.h"
#include "engine/backend/torch/cpu/prepared_rows.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"

namespace tandem::cpu {

class ArgmaxScreen {
 public:
  // With more rows, both products take about as long.
  static constexpr int64_t kMostRows = 6;

  // Whether a screen of `weights` reads less: one part of Q6_K or Q8_0.
  static bool suits(const QuantizedMatrix& weights);

  // copy: `weights` rounded to Q4_0. Runs on the calling thread's team. REQUIRES: suits(weights)
  ArgmaxScreen(QuantizedMatrix copy, const QuantizedMatrix& weights);

  // Of a screen of weights of this size.
  static int64_t bytes_for(int64_t outs, int64_t in);

  // out: [rows, outs]. columns: with `argmax`. The greatest element of a needed row, and all
  // that equal it, get the bits of product(); others get these or a number that is less. weights:
  // those of the constructor. Returns the share of the other panels that were read.
  double product(float* out, const Rows<float>& x, const QuantizedMatrix& weights,
                 const Columns& columns) const;

 private:
  const QuantizedMatrix copy_;
  std::vector<float> error_;  // by column: the bound of its error, divided by |x|
};

// Whether screens pay, from the shares that earlier ones read: some models and texts leave many
// elements close. A screen that fails costs half a product. Thread-safe.
class ScreenShares {
 public:
  // True: screen this product. At first, and from a mean share of kMost on, one in kRetry is.
  bool next(int64_t rows);
  void add(int64_t rows, double share);
  // Products of one row have read most panels for a long time.
  bool hopeless() const;

 private:
  static constexpr float kMost = 0.3F;
  static constexpr int kRetry = 16;

  struct Mean {
    std::atomic<float> share = 0.5F;  // of the last 64
    std::atomic<int> count = 0, skipped = 0;
  };
  std::array<Mean, ArgmaxScreen::kMostRows> by_rows_;
};

}  // namespace tandem::cpu
