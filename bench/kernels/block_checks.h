// Checks of products with weights in blocks of 4 and 8 bits, and of the rounding of rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bench/kernels/exact.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/product_checks.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/quantized.h"

namespace tandem::cuda::program {

// A random matrix in blocks, in the device's layout (kernels/quantized.h).
class RandomBlocks {
 public:
  RandomBlocks(QuantType type, int64_t outs, int64_t in, bool pairs, uint64_t seed)
      : shape_{outs, in, pairs, type}, seed_(seed) {}

  const BlockShape& shape() const { return shape_; }
  // One row of the matrix.
  void row(int64_t out, double* w) const {
    for (int64_t k = 0; k < shape_.in; ++k) {
      const int64_t group = k / kGroupInputs;
      const auto q = static_cast<double>(code(out, k));
      w[k] = of_bytes() ? half(out, group, 0) * (q - 128)
                        : half(out, group / 8, 0) * factor(out, group, 0) * q -
                              half(out, group / 8, 1) * factor(out, group, 1);
    }
  }
  std::vector<uint4> packed() const {
    std::vector<uint4> all(static_cast<size_t>(shape_.words()));
    const int words = layout_of(shape_.type).step_words();
    on_all_cores(shape_.tiles(), [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        for (int step = 0; step < shape_.steps(); ++step) {
          pack_step(all.data() + (tile * shape_.steps() + step) * words, tile, step);
        }
      }
    });
    return all;
  }

 private:
  bool of_bytes() const { return shape_.type == QuantType::kQ80; }
  uint32_t code(int64_t out, int64_t k) const {
    return bits_at(seed_, out * shape_.in + k) >> (of_bytes() ? 16 : 20);
  }
  uint16_t half_bits(int64_t out, int64_t block, int which) const {
    const uint32_t bits = bits_at(seed_ + 1, (out * shape_.in + block) * 2 + which);
    const float most = of_bytes() ? 0x1p-13f : which == 0 ? 0x1p-14f : 0x1p-11f;
    return Half(most * (1 + static_cast<float>(bits % 256) / 256)).bits;
  }
  double half(int64_t out, int64_t block, int which) const {
    Half h;
    h.bits = half_bits(out, block, which);
    return static_cast<double>(h);
  }
  uint32_t factor(int64_t out, int64_t group, int which) const {
    return bits_at(seed_ + 2, (out * shape_.in + group) * 2 + which) % 64;
  }
  int64_t out_of(int64_t tile, int r) const {
    const int64_t i = (shape_.pairs ? tile / 2 : tile) * kTileOuts + r;
    return i < shape_.width() ? i + (shape_.pairs ? tile % 2 * shape_.width() : 0) : -1;
  }

  void pack_step(uint4* to, int64_t tile, int step) const {
    std::memset(to, 0, static_cast<size_t>(layout_of(shape_.type).step_words()) * sizeof(uint4));
    const auto words = [&](int64_t i) { return reinterpret_cast<uint32_t*>(to + i); };
    const int scales = layout_of(shape_.type).code_words() * kWarp;
    for (int j = 0; j < kStepGroups; ++j) {
      const int64_t group = int64_t{step} * kStepGroups + j;
      if (group >= shape_.groups()) break;
      for (int lane = 0; lane < kWarp; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const int64_t out = out_of(tile, lane / 4 + i % 2 * 8);
          if (out < 0) continue;
          for (int b = 0; b < 4; ++b) {
            const int64_t k = group * kGroupInputs + i / 2 * 16 + lane % 4 * 4 + b;
            const uint32_t q = code(out, k) << (8 * b);
            if (of_bytes()) {
              words(int64_t{j} * kWarp + lane)[i] |= q;
            } else {
              words(int64_t{j} / 2 * kWarp + lane)[j % 2 * 2 + i % 2] |= q << (i / 2 * 4);
            }
          }
        }
      }
      for (int r = 0; r < kTileOuts; ++r) {
        const int64_t out = out_of(tile, r);
        if (out < 0) continue;
        const uint32_t scale = of_bytes() ? half_bits(out, group, 0)
                                          : factor(out, group, 0) | factor(out, group, 1) << 8;
        words(scales + r % 8)[j] |= scale << (r / 8 * 16);
        if (of_bytes()) continue;
        words(scales + 8)[r % 8 * 2 + r / 8] =
            half_bits(out, group / 8, 0) | uint32_t{half_bits(out, group / 8, 1)} << 16;
      }
    }
  }

  BlockShape shape_;
  uint64_t seed_;
};

template <QuantType kType>
void launch_blocks(const BlockArguments<BFloat16>& a, int64_t most_blocks) {
  const bool gated = a.then == ProductThen::kGate;
  if (a.rows > kTileRows) {
    gated ? launch_block_product<BFloat16, kType, 2, 2>(stream, a, most_blocks)
          : launch_block_product<BFloat16, kType, 1, 2>(stream, a, most_blocks);
  } else {
    gated ? launch_block_product<BFloat16, kType, 2, 1>(stream, a, most_blocks)
          : launch_block_product<BFloat16, kType, 1, 1>(stream, a, most_blocks);
  }
}

// Two types only: all eight take minutes to compile.
inline void block_product_of(const BlockArguments<BFloat16>& a, int64_t most_blocks) {
  a.shape.type == QuantType::kQ80 ? launch_blocks<QuantType::kQ80>(a, most_blocks)
                                  : launch_blocks<QuantType::kQ4K>(a, most_blocks);
}

inline const char* name_of(QuantType type) { return type == QuantType::kQ80 ? "q8_0" : "q4_k"; }

// Rows in 8 bits: codes and scales of a device, and their values.
struct RoundedRows {
  RoundedRows(int64_t outs, int64_t in, QuantType type)
      : shape{outs, in, false, type},
        codes(BlockRows::code_words(shape.steps(), kMostProductRows)),
        scales(BlockRows::scale_count(shape.steps())) {}

  BlockRows view() const { return {codes.ptr(), scales.ptr()}; }
  std::vector<double> values() const {
    const std::vector<uint32_t> c = codes.read();
    const std::vector<GroupScale> s = scales.read();
    std::vector<double> all;
    for (int64_t r = 0; r < kMostProductRows; ++r) {
      for (int64_t k = 0; k < shape.in; ++k) {
        const int64_t group = k / kGroupInputs, i = k % kGroupInputs;
        const int64_t of_lane = (r * shape.steps() + group / kStepGroups) * 4 + i % 16 / 4;
        const int64_t at = of_lane * kGroupInputs + (group % kStepGroups * 2 + i / 16) * 4 + i % 4;
        const uint32_t word = c[static_cast<size_t>(at / 4)];
        all.push_back(
            static_cast<double>(static_cast<int8_t>(word >> (at % 4 * 8) & 0xff)) *
            static_cast<double>(s[static_cast<size_t>(group * kMostProductRows + r)].scale));
      }
    }
    return all;
  }

  BlockShape shape;
  Buffer<uint32_t> codes;
  Buffer<GroupScale> scales;
};

// The largest difference of rounded rows, in codes of their group: 1/2 if all are nearest.
inline double off_in_codes(const std::vector<double>& rounded, const std::vector<double>& x) {
  double worst = 0;
  for (size_t group = 0; group < x.size(); group += kGroupInputs) {
    double top = 1e-30;
    for (size_t i = 0; i < kGroupInputs; ++i) top = std::max(top, std::abs(x[group + i]));
    for (size_t i = 0; i < kGroupInputs; ++i) {
      const double off = std::abs(rounded[group + i] - x[group + i]) / top * 127;
      if (!(off <= worst)) worst = off;
    }
  }
  return worst;
}

inline void check_blocks(Report& report, const Shape& shape, const Matrix& m, QuantType type,
                         uint64_t seed) {
  const std::string name = std::string("blocks.") + name_of(type) + "." + m.name;
  const RandomBlocks matrix(type, m.outs, m.in, m.then == ProductThen::kGate, seed);
  const Buffer<uint4> weights(matrix.packed());
  const std::vector<float> rows = residual_rows(m.in, seed + 4);
  const std::vector<float> weight = norm_weights(m.in, seed + 5);
  const Buffer<float> residual(rows), norm_weight(weight);
  const RoundedRows rounded(m.outs, m.in, type);
  NormArguments<float> of_norm;
  std::vector<double> want = as_doubles(rows);
  if (m.normed) {
    of_norm = {false, norm_weight.ptr(), nullptr, kEps};
    want = exact_norm(rows, weight, kEps, m.in);
  }
  quantize_rows<float>(stream, rounded.view(), residual.ptr(), kMostProductRows, m.in, of_norm);
  finish("quantize_rows");
  const std::vector<double> x = rounded.values();
  report.check(name + ".rows", off_in_codes(x, want), 0.502);
  const std::vector<double> exact =
      exact_products(x, m.outs, m.in, [&](int64_t out, double* w) { matrix.row(out, w); });
  int calls = 0;
  check_product(report, name, m, exact, {}, seed, {1, 2, 7, 8, 9, 16},
                [&](int n, auto& out, auto& sums) {
                  // The scales of rows past n are zero.
                  quantize_rows<float>(stream, rounded.view(), residual.ptr(), n, m.in, of_norm);
                  launched("quantize_rows");
                  BlockArguments<BFloat16> a;
                  a.shape = matrix.shape();
                  a.weights = weights.ptr();
                  a.x = rounded.view();
                  a.rows = n;
                  a.then = m.then;
                  if (m.wide) {
                    a.sums = sums.ptr();
                  } else {
                    a.out = out.ptr();
                  }
                  block_product_of(a, int64_t{shape.multiprocessors} * (1 + calls++ % 8));
                });
}

}  // namespace tandem::cuda::program
