// Checks of the kernel that rounds rows to fp8, for products with weights in fp8.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernels/e4m3.h"
#include "bench/kernels/exact.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/fp8.h"

namespace tandem::cuda::program {

// Rows of different sizes with their largest element last; every fourth row is zero.
inline Rows rows_to_round(int64_t n, int64_t width, uint64_t seed) {
  Rows x = numbers<BFloat16>(n * width, seed, 7);
  for (int64_t i = 0; i < n * width; ++i) {
    const int64_t r = i / width;
    BFloat16& number = x[static_cast<size_t>(i)];
    const float of_one = i % width == width - 1 ? 7 : static_cast<float>(number);
    number = static_cast<BFloat16>(r % 4 == 3 ? 0 : std::ldexp(of_one, static_cast<int>(r)));
  }
  return x;
}

// Codes are the nearest numbers of fp8 and scales are exact. Then a NaN stays in its own row.
inline void check_rounded_rows(Report& report, int64_t n, int64_t width, uint64_t seed) {
  const std::string name = "fp8.width_" + std::to_string(width) + ".rows_" + std::to_string(n);
  const Rows rows = rows_to_round(n, width, seed);
  Buffer<BFloat16> x(rows);
  const Buffer<uint8_t> codes(n * width);
  const Buffer<float> scales(n);
  const auto round = [&] {
    round_rows<BFloat16>(stream, codes.ptr(), scales.ptr(), x.ptr(), n, width);
    finish("round_rows");
    return codes.read();
  };
  const std::vector<uint8_t> got = round();
  const std::vector<float> got_scales = scales.read();
  std::atomic<bool> scales_same = true, codes_same = true;
  on_all_cores(n * width, [&](int64_t begin, int64_t end) {
    int64_t row = -1;
    float scale = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (i / width != row) {
        row = i / width;
        float most = 0;
        for (int64_t k = row * width; k < (row + 1) * width; ++k) {
          most = std::max(most, std::abs(static_cast<float>(rows[static_cast<size_t>(k)])));
        }
        scale = std::max(most / 448, 0x1p-126f);
        if (got_scales[static_cast<size_t>(row)] != scale) scales_same = false;
      }
      const auto at = static_cast<size_t>(i);
      if (got[at] != nearest_e4m3(static_cast<float>(rows[at]) / scale)) codes_same = false;
    }
  });
  report.same(name + ".scales", scales_same);
  report.same(name + ".codes", codes_same);

  Rows odd = rows;
  odd[static_cast<size_t>(width - 1)] = static_cast<BFloat16>(std::nanf(""));
  x.write(odd);
  const std::vector<uint8_t> with_nan = round();
  const auto is_nan = [](uint8_t code) { return std::isnan(e4m3(code)); };
  const auto first_end = with_nan.begin() + width;
  report.same(name + ".nan", std::any_of(with_nan.begin(), first_end, is_nan) &&
                                 std::equal(first_end, with_nan.end(), got.begin() + width));
}

}  // namespace tandem::cuda::program
