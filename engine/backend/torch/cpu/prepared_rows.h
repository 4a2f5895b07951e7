// Activations as the kernels of product.h read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/norm.h"
#include "engine/backend/torch/cpu/packed_matrix.h"

namespace tandem::cpu {

// What meets weights of a type. kDouble: fp64 weights; kBFloat16: those of bf16 on processors that
// multiply them (target AVX3_BF16); kInt8: those of int8 on processors that multiply them
// (AVX3_VNNI), with a scale for every kRowBlock numbers; kInt16: those of int8 on others, of 14
// bits, with a scale per row; kFloat: all others.
// kInt8x32: quantized weights (quantized_matrix.h), with a scale for 32 numbers.
enum class RowType : uint8_t { kFloat, kInt8, kInt16, kDouble, kBFloat16, kInt8x32 };
RowType row_type(WeightType weight);

// Rows as they come, or their norms.
template <class T>
struct Rows {
  const T* x = nullptr;  // [rows, in]
  int64_t rows = 0;
  int64_t in = 0;
  Norm<T> norm = {};
};

// Rows stand in groups of as many as a kernel takes at once, split evenly. A group holds all its
// rows' first inputs, then the second ones: [group][in][rows of it]. Rounding (narrow_row.h) of a
// row depends on that row alone. What is not finite becomes a scale that is NaN.
//
// Grows with use and keeps its memory. Not thread-safe; other threads may read it, and fill other
// groups.
class PreparedRows {
 public:
  // All of it. A single row of fp32 or fp64 without a norm is kept instead of copied, so it must
  // stay.
  void prepare(RowType type, const Rows<float>& from);
  void prepare(RowType type, const Rows<double>& from);  // kDouble

  // Or piece by piece: memory first, then groups [begin, end), each once.
  void shape(RowType type, int64_t rows, int64_t in);
  void fill(const Rows<float>& from, int64_t begin, int64_t end);
  void fill(const Rows<double>& from, int64_t begin, int64_t end);

  RowType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t in() const { return in_; }

  int64_t groups() const { return groups_; }
  int64_t first_row(int64_t group) const {
    const int64_t extra = rows_ % groups_;
    return rows_ / groups_ * group + (group < extra ? group : extra);
  }
  // Numbers of a group; of kInt16 and kBFloat16 pairs of them, [group][in / 2][rows of it][2]. Of
  // kInt8 [group][quantized_row_size()][rows of it] of 32 bits; of kInt8x32 [group][in / 32 *
  // quantized_words()][rows of it] of 32 bits.
  const std::byte* group(int64_t i) const;
  const float* scales() const { return scales_.data(); }  // kInt16: [rows]

 private:
  template <class T>
  void prepare_all(RowType type, const Rows<T>& from);
  template <class T>
  T* packed(int64_t first_row);

  RowType type_ = RowType::kFloat;
  int64_t rows_ = 0;
  int64_t in_ = 0;
  int64_t groups_ = 1;
  int64_t row_bytes_ = 0;
  const std::byte* data_ = nullptr;
  std::vector<double> packed_;  // doubles, for their alignment
  std::vector<float> scales_;
};

}  // namespace tandem::cpu
