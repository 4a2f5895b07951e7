// Random matrices of every weight type, for tests of CPU products.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/torch/cpu/packed_matrix.h"

namespace tandem {

inline constexpr cpu::WeightType kWeightTypes[] = {
    cpu::WeightType::kFloat, cpu::WeightType::kBFloat16, cpu::WeightType::kHalf,
    cpu::WeightType::kInt8, cpu::WeightType::kDouble};

inline std::string type_name(cpu::WeightType type) {
  static const char* const kNames[] = {"fp32", "bf16", "fp16", "int8", "fp64"};
  return kNames[static_cast<int>(type)];
}

inline std::vector<double> random_numbers(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> v(static_cast<size_t>(n));
  for (double& x : v) x = normal(random);
  return v;
}

template <class T, class From>
std::vector<T> as(const std::vector<From>& from) {
  return std::vector<T>(from.begin(), from.end());
}

inline uint16_t bfloat_bits(double x) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline double bfloat(double x) { return std::bit_cast<float>(uint32_t{bfloat_bits(x)} << 16); }

// A packed matrix, and the exact values that it represents.
struct TestMatrix {
  cpu::PackedMatrix packed;
  std::vector<double> values;  // [outs, in]

  TestMatrix(cpu::WeightType type, int64_t outs, int64_t in, const std::vector<double>& from,
             cpu::Layout layout = cpu::Layout::kInOrder)
      : packed(type, outs, in, layout), values(from) {
    switch (type) {
      case cpu::WeightType::kDouble:
        packed.pack(0, outs, from.data());
        break;
      case cpu::WeightType::kFloat:
        for (double& v : values) v = static_cast<float>(v);
        packed.pack(0, outs, as<float>(from).data());
        break;
      case cpu::WeightType::kBFloat16: {
        std::vector<uint16_t> bits;
        for (double& v : values) {
          bits.push_back(bfloat_bits(v));
          v = bfloat(v);
        }
        packed.pack(0, outs, bits.data());
        break;
      }
      case cpu::WeightType::kHalf: {
        std::vector<_Float16> halves;
        for (double& v : values) {
          halves.push_back(static_cast<_Float16>(v));
          v = static_cast<double>(halves.back());
        }
        packed.pack(0, outs, halves.data());
        break;
      }
      case cpu::WeightType::kInt8:
        packed.pack(0, outs, as<float>(from).data());
        for (int64_t r = 0; r < outs; ++r) {
          double* row = values.data() + r * in;
          double most = 0;
          for (int64_t k = 0; k < in; ++k) most = std::fmax(most, std::abs(row[k]));
          if (most == 0) continue;
          const float step = static_cast<float>(most) / 127;
          for (int64_t k = 0; k < in; ++k) {
            row[k] = double{step} * std::nearbyint(static_cast<float>(row[k]) / step);
          }
        }
        break;
    }
  }
};

}  // namespace tandem
