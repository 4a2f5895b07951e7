// Weight matrices in the layout of the kernels of product.h.
//
// Columns of the product (rows of the weight) are grouped into panels of two vectors. A panel
// stores all of its columns for the first input, then for the second, and so on:
// [panel][in][columns]. A pass over a panel is thus one sequential stream, each input of a row is
// multiplied with two vectors, and the sums of several rows stay in registers. The last panel is
// padded with zeros.
//
//   type              layout
//   fp32, fp16, fp64  [panel][in][columns]
//   bf16              with bf16 dot products (AVX3_BF16): [panel][in / 2][columns][2], two inputs
//                     of a column in 32 bits; otherwise: [panel][in][columns / 2][2], columns i
//                     and i + columns / 2 in 32 bits
//   int8              with byte dot products (AVX3_VNNI): [panel][in / 4][columns][4] of
//                     weight + 128; otherwise: [panel][in / 2][columns][2]
//
// The vector width is the processor's, so packed weights are never written to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/weight_memory.h"

namespace tandem::cpu {

enum class WeightType : uint8_t { kFloat, kBFloat16, kHalf, kInt8, kDouble };

// Order of the product's columns in panels.
enum class Layout : uint8_t {
  kInOrder,
  // First vector of a panel: columns of the first half of the matrix. Second vector: their
  // counterparts of the second half (a gate and the values that it gates).
  kPairs,
};

class PackedMatrix {
 public:
  PackedMatrix() = default;  // empty
  // [outs, in], uninitialized until pack(). The thread that packs a row first touches its memory.
  // REQUIRES: outs is even for Layout::kPairs.
  PackedMatrix(WeightType type, int64_t outs, int64_t in, Layout layout = Layout::kInOrder);

  // Sets rows first .. first + n - 1. from: [n, in] of the element type (bf16 and fp16 as
  // uint16_t). For kInt8 from: float, quantized symmetrically per row to 255 levels between -max
  // and max.
  void pack(int64_t first, int64_t n, const void* from);
  // Writes row `row` as the product uses it (after rounding). to: [in]
  void unpack(int64_t row, float* to) const;
  void unpack(int64_t row, double* to) const;

  bool empty() const { return outs_ == 0; }
  WeightType type() const { return type_; }
  int64_t outs() const { return outs_; }
  int64_t in() const { return in_; }
  Layout layout() const { return layout_; }
  int64_t panels() const { return run_ == 0 ? 0 : (side_ + run_ - 1) / run_; }
  int columns() const { return columns_; }  // per panel, on the target that packed the matrix
  int inputs() const { return inputs_; }    // interleaved inputs
  int64_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t i) const { return data_.get() + i * panel_bytes_; }
  const float* scales() const { return scales_.data(); }  // kInt8: [panels * columns]
  int64_t bytes() const;                                  // bytes of memory

 private:
  // Index of a row's column, counted over all panels.
  int64_t column(int64_t row) const {
    const int64_t side = row / side_;
    const int64_t i = row - side * side_;
    return i / run_ * columns_ + side * run_ + i % run_;
  }
  int64_t offset(int64_t row, int64_t k) const;  // of an element, in elements
  int int8_shift() const { return inputs_ == 4 ? 128 : 0; }

  WeightType type_ = WeightType::kFloat;
  int64_t outs_ = 0;
  int64_t in_ = 0;
  Layout layout_ = Layout::kInOrder;
  int columns_ = 0;
  int inputs_ = 1;
  int64_t side_ = 0;  // rows in one order: all, or half of them for kPairs
  int64_t run_ = 0;   // of them per panel
  int64_t panel_bytes_ = 0;
  WeightMemory data_;
  std::vector<float> scales_;
};

}  // namespace tandem::cpu
