// Activations in the layout of the kernels of product.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/norm.h"
#include "engine/backend/torch/cpu/packed_matrix.h"

namespace tandem::cpu {

// Activation type used with a weight type.
//
//   kFloat     weights not listed below
//   kDouble    fp64 weights
//   kBFloat16  bf16 weights on targets with bf16 dot products (AVX3_BF16)
//   kInt8      int8 weights on targets with byte dot products (AVX3_VNNI); a scale per kRowBlock
//   kInt16     int8 weights on other targets; 14-bit codes, a scale per row
//   kInt8x32   quantized weights (quantized_matrix.h); a scale per 32 elements
enum class RowType : uint8_t { kFloat, kInt8, kInt16, kDouble, kBFloat16, kInt8x32 };
RowType row_type(WeightType weight);

// Input rows, and the norm to apply to them.
template <class T>
struct Rows {
  const T* x = nullptr;  // [rows, in]
  int64_t rows = 0;
  int64_t in = 0;
  Norm<T> norm = {};
};

// Rows are divided evenly into groups of at most as many rows as a kernel processes at once. A
// group is stored transposed: [group][in][rows of the group], for kInt8x32 in units of
// adjacent_words() (quantized_tiles.h). Rounding (narrow_row.h) of a row
// depends on that row only. Non-finite elements result in a NaN scale.
//
// Grows with use and does not shrink. Not thread-safe, except that other threads may read it or
// fill other groups.
class PreparedRows {
 public:
  // Prepares all rows. A single fp32 or fp64 row without a norm is referenced, not copied, so it
  // must outlive its use.
  void prepare(RowType type, const Rows<float>& from);
  void prepare(RowType type, const Rows<double>& from);  // for kDouble

  // Prepares in pieces: shape() allocates, then fill() is called once for each range of groups.
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
  // Data of a group, by type:
  // kFloat, kDouble: [in][rows]; kInt16, kBFloat16: [in / 2][rows][2]; kInt8: 32-bit words
  // [quantized_row_size()][rows]; kInt8x32: 32-bit words [in / 32 * quantized_words() / a][rows][a]
  // with a = adjacent_words().
  const std::byte* group(int64_t i) const;
  const float* scales() const { return scales_.data(); }  // [rows], for kInt16

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
  std::vector<double> packed_;  // double for alignment
  std::vector<float> scales_;
};

}  // namespace tandem::cpu
