// A weight matrix as the kernels of product.h read it.
//
// Columns of the product (rows of the weight) stand in panels of two vectors. A panel holds all of
// its columns for the first input, then for the second, and so on: [panel][in][columns]. So a pass
// over a panel is one stream, an input of a row meets two vectors at a time, and sums of several
// rows stay in registers. The last panel is filled up with zeros.
//
//   fp32, fp16, fp64   [panel][in][columns]
//   bf16               [panel][in / 2][columns][2]: two inputs of a column share 32 bits, on
//                      processors that multiply and add such pairs; on others
//                      [panel][in][columns / 2][2]: columns i and i + columns / 2 share them
//   int8               [panel][in / 4][columns][4] of weight + 128, on processors that multiply
//                      and add such fours; on others [panel][in / 2][columns][2]
//
// Vectors are as wide as the processor has them, so packed weights are never written to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/weight_memory.h"

namespace tandem::cpu {

enum class WeightType : uint8_t { kFloat, kBFloat16, kHalf, kInt8, kDouble };

// Which columns of the product share a panel.
enum class Layout : uint8_t {
  kInOrder,
  kPairs,  // those of the matrix's first half in a panel's first vector, and in its second vector
           // their counterparts of the second half: a gate and what it gates
};

class PackedMatrix {
 public:
  PackedMatrix() = default;  // empty
  // [outs, in], to be filled by pack(). Memory is touched by who fills it.
  // Of Layout::kPairs outs must be even.
  PackedMatrix(WeightType type, int64_t outs, int64_t in, Layout layout = Layout::kInOrder);

  // Sets rows first .. first + n - 1 of the matrix. from: [n, in] of the element type (bits of
  // bf16 and fp16 as uint16_t); of kInt8: float, rounded to the nearest of 255 steps between
  // -max and max of each row's magnitude.
  void pack(int64_t first, int64_t n, const void* from);
  // One row as numbers: what the product computes with. to: [in]
  void unpack(int64_t row, float* to) const;
  void unpack(int64_t row, double* to) const;

  bool empty() const { return outs_ == 0; }
  WeightType type() const { return type_; }
  int64_t outs() const { return outs_; }
  int64_t in() const { return in_; }
  Layout layout() const { return layout_; }
  int64_t panels() const { return run_ == 0 ? 0 : (side_ + run_ - 1) / run_; }
  int columns() const { return columns_; }  // of a panel, on the processor it was made on
  int inputs() const { return inputs_; }    // that stand together
  int64_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t i) const { return data_.get() + i * panel_bytes_; }
  const float* scales() const { return scales_.data(); }  // kInt8: [panels * columns]
  int64_t bytes() const;                                  // of memory

 private:
  // Number of a row's column in all panels.
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
  int64_t side_ = 0;  // rows that stand in order: all, or half of them
  int64_t run_ = 0;   // of them in a panel
  int64_t panel_bytes_ = 0;
  WeightMemory data_;
  std::vector<float> scales_;
};

}  // namespace tandem::cpu
