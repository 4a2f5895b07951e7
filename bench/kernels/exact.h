// What rows, norms and activations are in fp64, for the checks of kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/kernels/memory.h"
#include "engine/backend/torch/cuda/kernels/numbers.h"
#include "engine/backend/torch/cuda/kernels/product_end.h"

namespace tandem::cuda::program {

using Rows = std::vector<BFloat16>;

inline double silu(double x) { return x / (1 + std::exp(-x)); }

template <class T>
bool equal_bits(const T* a, const T* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(T)) == 0;
}

// Rows of unlike size, fp32: [kMostProductRows, in].
inline std::vector<float> residual_rows(int64_t in, uint64_t seed) {
  std::vector<float> x = numbers<float>(kMostProductRows * in, seed);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= 0.25f * static_cast<float>(1 + static_cast<int64_t>(i) / in % 5);
  }
  return x;
}

inline std::vector<float> norm_weights(int64_t in, uint64_t seed) {
  std::vector<float> w = numbers<float>(in, seed, 0.5f);
  for (float& x : w) x += 1;
  return w;
}

template <class T>
std::vector<double> as_doubles(const std::vector<T>& from) {
  std::vector<double> all;
  all.reserve(from.size());
  for (const T& x : from) all.push_back(static_cast<double>(x));
  return all;
}

// An RMS norm: rows [rows, width].
inline std::vector<double> exact_norm(const std::vector<float>& x, const std::vector<float>& weight,
                                      double eps, int64_t width) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    double squares = 0;
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      squares += static_cast<double>(x[row + i]) * static_cast<double>(x[row + i]);
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      y[row + i] = static_cast<double>(weight[i]) * static_cast<double>(x[row + i]) * scale;
    }
  }
  return y;
}

inline constexpr float kEps = 1e-5f;

}  // namespace tandem::cuda::program
