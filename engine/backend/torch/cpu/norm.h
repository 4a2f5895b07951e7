// Norms of a row. The order of summation depends only on the width.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cpu {

// R: type of the residual stream.
template <class R>
struct Norm {
  NormKind kind = NormKind::kNone;
  const R* weight = nullptr;  // [width]
  const R* bias = nullptr;    // [width], for kLayer
  double eps = 0;
};

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over n elements.
template <class T, class R>
inline void layer_norm_row(T* out, const R* x, const R* weight, const R* bias, double eps,
                           int64_t n) {
  R lane[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % kLanes] += x[i];
  const R mean = sum_lanes(lane) / static_cast<R>(n);
  R squares[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) squares[i % kLanes] += (x[i] - mean) * (x[i] - mean);
  const R scale = R{1} / std::sqrt(sum_lanes(squares) / static_cast<R>(n) + static_cast<R>(eps));
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<T>((x[i] - mean) * scale * weight[i] + bias[i]);
  }
}

// Applies norm to n elements. REQUIRES: norm.kind is not kNone.
template <class T, class R>
inline void norm_row(T* out, const R* x, const Norm<R>& norm, int64_t n) {
  if (norm.kind == NormKind::kRms) return rms_norm_row(out, x, norm.weight, norm.eps, n);
  layer_norm_row(out, x, norm.weight, norm.bias, norm.eps, n);
}

}  // namespace tandem::cpu
