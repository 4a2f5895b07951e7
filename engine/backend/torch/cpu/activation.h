// Scalar activations, for loops that the compiler vectorizes.
#pragma once

#include <cmath>
#include <numbers>

#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/kinds.h"

namespace tandem::cpu {

// GELU by tanh is x / (1 + exp(-x (kGeluLinear + kGeluCubic x^2))).
inline constexpr double kGeluLinear = 2 * 0.7978845608028654;  // 2 sqrt(2 / pi)
inline constexpr double kGeluCubic = kGeluLinear * 0.044715;

template <Activation Kind, class R>
inline R activated(R x) {
  if constexpr (Kind == Activation::kSilu) {
    return x / (R{1} + exp_of(-x));
  } else if constexpr (Kind == Activation::kGeluTanh) {
    const R u = x * (static_cast<R>(kGeluLinear) + static_cast<R>(kGeluCubic) * x * x);
    return x / (R{1} + exp_of(-u));
  } else if constexpr (Kind == Activation::kGelu) {
    return R{0.5} * x * (R{1} + std::erf(x * static_cast<R>(1 / std::numbers::sqrt2)));
  } else {
    return x < R{0} ? R{0} : x;  // in this form NaN propagates
  }
}

// Calls f.operator()<kind>().
template <class F>
inline void for_activation(Activation kind, const F& f) {
  switch (kind) {
    case Activation::kSilu:
      return f.template operator()<Activation::kSilu>();
    case Activation::kGelu:
      return f.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return f.template operator()<Activation::kGeluTanh>();
    case Activation::kRelu:
      return f.template operator()<Activation::kRelu>();
  }
}

}  // namespace tandem::cpu
