// Kinds of norms, activations and epilogues.
#pragma once

#include <cstdint>

namespace tandem {

enum class NormKind : uint8_t {
  kNone,
  kRms,    // x / sqrt(mean(x^2) + eps) * weight
  kLayer,  // (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
};

enum class Activation : uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x Phi(x), by erf (arXiv:1606.08415, equation 1)
  kGeluTanh,  // the same by tanh (section 2)
  kRelu,      // max(x, 0)
};

// The epilogue of a product y.
enum class ProductThen : uint8_t {
  kStore,     // out = y
  kActivate,  // out = act(y)
  kAdd,       // out += y
  kGate,      // out = act(first half of y) * second half of y
};

}  // namespace tandem
