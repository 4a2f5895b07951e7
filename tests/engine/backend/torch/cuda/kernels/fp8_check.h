// Rows in fp8, compared with the nearest of all numbers of e4m3.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/kernels/e4m3.h"
#include "engine/backend/torch/cuda/kernels/fp8.h"
#include "tests/engine/backend/torch/cuda/kernels/checks.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

// Rows of different sizes, with their largest element last; every fourth row is zero.
template <class T>
std::string check_rounded(int64_t rows, int64_t width, uint64_t seed) {
  std::vector<double> numbers = random_as<T>(rows * width, seed);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      double& x = numbers[static_cast<size_t>(r * width + i)];
      if (i == width - 1) x = 9;
      x = r % 4 == 3 ? 0 : static_cast<double>(static_cast<T>(std::ldexp(x, static_cast<int>(r))));
    }
  }
  const DeviceArray<T> x("x", numbers);
  const DeviceArray<uint8_t> codes("codes", rows * width);
  const DeviceArray<float> scales("scales", rows);
  round_rows<T>({}, codes, scales, x, rows, width);
  for (int64_t r = 0; r < rows; ++r) {
    float most = 0;
    for (int64_t i = 0; i < width; ++i) {
      most = std::max(most, std::abs(static_cast<float>(x[r * width + i])));
    }
    const float scale = std::max(most / 448, std::numeric_limits<float>::min());
    if (!scales.is_written(r) || scales[r] != scale) return absl::StrCat("scale of row ", r);
    for (int64_t i = 0; i < width; ++i) {
      const int want = nearest_e4m3(static_cast<float>(x[r * width + i]) / scale);
      if (codes[r * width + i] != want) {
        return absl::StrCat("row ", r, "[", i, "]: code ", int{codes[r * width + i]},
                            "; the nearest: ", want);
      }
    }
  }
  return "";
}

// A row with `odd` has a NaN; the other row does not.
template <class T>
std::string check_rounded_odd(float odd, int64_t width) {
  std::vector<double> numbers = random_as<T>(2 * width, 5);
  const DeviceArray<T> x("x", numbers);
  x.set(width - 1, static_cast<T>(odd));
  const DeviceArray<uint8_t> codes("codes", 2 * width);
  const DeviceArray<float> scales("scales", 2);
  round_rows<T>({}, codes, scales, x, 2, width);
  for (int64_t r = 0; r < 2; ++r) {
    bool nan = false;
    for (int64_t i = 0; i < width; ++i) nan = nan || std::isnan(e4m3(codes[r * width + i]));
    if (nan != (r == 0)) return absl::StrCat("row ", r, nan ? ": a NaN" : ": no NaN");
  }
  return "";
}

}  // namespace tandem::cuda
