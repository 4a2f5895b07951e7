// A weight matrix in blocks of 4 to 8 bits, as GGUF files have them, in an order that the kernels
// of product.h read in one stream. Nothing is rounded: a weight is the same number as in the file,
// and takes the same memory.
//
//   value = d (q - zero)        Q4_0 (zero 8), Q5_0 (16), Q8_0 (128): a scale for 32 inputs
//         = d q + m             Q4_1, Q5_1: and a minimum
//         = d s q - dmin n      Q4_K, Q5_K: d and dmin for 256 inputs, s and n of 6 bits for 32
//         = d s (q - 32)        Q6_K: s of 8 bits for 16 inputs
//
// A unit is 16 columns of the product (rows of the weight), for all inputs: first its scales, then
// its codes. Four inputs of 16 columns, a byte each, are 64 bytes: one vector of AVX-512, two of
// AVX2. So the order does not depend on the processor.
//
//   codes, for 32 inputs   4 bits: 4 x 64 bytes; number i has inputs 4i to 4i+3 in the low halves
//                          of its bytes and inputs 16+4i to 16+4i+3 in the high ones
//                          5 bits: the low four so; and 64 bytes, whose bit i is the fifth of
//                          inputs 4i to 4i+3
//                          6 bits: the low four so; and 2 x 64 bytes, whose i-th two bits belong to
//                          inputs 4i to 4i+3 of each 16
//                          8 bits: 8 x 64 bytes
//   scales                 fp16 of 16 columns, for 32 inputs: d, and m if there is one
//                          Q4_K, Q5_K, for 256: fp16 d, dmin; then three words a column: numbers 0
//                          to 7 of s, 8 to 15 of n, five in 30 bits, the last in the words' rests
//                          Q6_K, for 256: s of 16 columns, 16 times; fp16 d
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/weight_memory.h"

namespace tandem::cpu {

enum class QuantType : uint8_t { kQ40, kQ41, kQ50, kQ51, kQ80, kQ4K, kQ5K, kQ6K };

// How a type's scales lie.
enum class Scales : uint8_t { kScale, kScaleAndMin, kTwoLevels, kSixteens };

struct QuantFormat {
  int bits;  // of a code
  Scales scales;
  int zero;  // the code of 0 where there is no minimum

  int inputs() const {  // of a block
    return scales == Scales::kTwoLevels || scales == Scales::kSixteens ? 256 : 32;
  }
  // Of a unit, for a block's inputs.
  int scale_bytes() const {
    constexpr int kBytes[] = {32, 64, 256, 288};
    return kBytes[static_cast<int>(scales)];
  }
  int code_bytes() const { return bits * 64; }  // of a unit, for 32 inputs
  int file_block_bytes() const { return (scale_bytes() + inputs() / 32 * code_bytes()) / 16; }
};
QuantFormat quant_format(QuantType type);

class QuantizedMatrix {
 public:
  static constexpr int kUnit = 16;     // columns
  static constexpr int kColumns = 32;  // of a panel: two units

  // Rows of one type that stand side by side with others, as q, k and v do.
  struct Part {
    QuantType type = QuantType::kQ40;
    int64_t outs = 0;
  };
  struct Segment {
    QuantFormat format{};
    int64_t first_out = 0, outs = 0;
    int64_t first_panel = 0, panels = 0;
    int64_t codes_at = 0;    // in a unit, in bytes
    int64_t unit_bytes = 0;  // a multiple of 64
    int64_t at = 0;          // of its first unit in the matrix
  };

  QuantizedMatrix() = default;  // empty
  // To be filled by pack(). in: a multiple of each type's block. Of Layout::kPairs there are two
  // parts, alike: a panel has a unit of each.
  QuantizedMatrix(const std::vector<Part>& parts, int64_t in, Layout layout = Layout::kInOrder);

  // Sets row `row`, numbered through all parts. blocks: as in the file, of the row's part's type.
  void pack(int64_t row, const std::byte* blocks);
  // One row as numbers: exactly what the file says. to: [in]
  void unpack(int64_t row, float* to) const;

  bool empty() const { return outs_ == 0; }
  int64_t outs() const { return outs_; }
  int64_t in() const { return in_; }
  Layout layout() const { return layout_; }
  int columns() const { return kColumns; }
  int64_t panels() const { return panels_; }
  int64_t panel_bytes() const { return panels_ == 0 ? 0 : bytes_ / panels_; }  // on average
  int64_t bytes() const { return bytes_; }
  const std::vector<Segment>& segments() const { return segments_; }
  // Two units.
  const std::byte* panel(const Segment& s, int64_t panel) const {
    return data_.get() + s.at + (panel - s.first_panel) * 2 * s.unit_bytes;
  }

 private:
  struct Place {
    const Segment* segment;
    int64_t unit;  // offset of its bytes
    int column;    // in it
  };
  Place place(int64_t row) const;

  int64_t outs_ = 0;
  int64_t in_ = 0;
  Layout layout_ = Layout::kInOrder;
  int64_t panels_ = 0;
  int64_t bytes_ = 0;
  std::vector<Segment> segments_;
  WeightMemory data_;
};

}  // namespace tandem::cpu
