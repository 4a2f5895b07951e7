// Weight matrices in GGUF block formats of 4 to 8 bits, reordered so that the kernels of product.h
// read one sequential stream. The conversion is lossless and keeps the size of the file's data.
//
//   value = d (q - zero)      Q4_0 (zero 8), Q5_0 (16), Q8_0 (128): one scale per 32 inputs
//         = d q + m           Q4_1, Q5_1: scale and minimum per 32 inputs
//         = d s q - dmin n    Q4_K, Q5_K: d and dmin per 256 inputs, 6-bit s and n per 32
//         = d s (q - 32)      Q6_K: d per 256 inputs, 8-bit s per 16
//
// A unit holds 16 columns of the product (rows of the weight) for all inputs: the scales of all
// blocks, padded to 64 bytes, then the codes of all groups of 32 inputs. Codes are read in lines of
// 64 bytes (four inputs of 16 columns: one AVX-512 vector, two AVX2 vectors). The layout is the
// same on every processor.
//
//   unit    | scales of block 0 | block 1 | .. | codes of inputs 0..31 | 32..63 | .. |
//
//   scales of a block, for 16 columns:
//     Q4_0 Q5_0 Q8_0  | 16 fp16 d |                                             32 bytes
//     Q4_1 Q5_1       | 16 fp16 d | 16 fp16 m |                                 64
//     Q4_K Q5_K       | 16 fp16 d | 16 fp16 dmin | 3 x 16 words of 32 bits |   256
//     Q6_K            | 16 x 16 s of 8 bits | 16 fp16 d |                      288
//   A column's three words hold its sixteen 6-bit numbers (0..7: s, 8..15: n): five per word in
//   bits 0..29, and the sixteenth in bits 30..31 of the words.
//
//   codes of 32 inputs; byte 4c + k of a line belongs to column c:
//     4 bits  line i = 0..3  low nibble: input 4i + k; high nibble: input 16 + 4i + k
//     5 bits  lines 0..3 as above, then one line with the fifth bits:
//             bit i: input 4i + k; bit 4 + i: input 16 + 4i + k
//     6 bits  lines 0..3 as above, then two lines with the upper two bits, for each 16 inputs:
//             bits 2i, 2i + 1: input 4i + k
//     8 bits  line i = 0..7  input 4i + k
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/weight_memory.h"
#include "engine/backend/torch/quant_format.h"

namespace tandem::cpu {

using tandem::quant_format, tandem::QuantFormat, tandem::QuantScales, tandem::QuantType;

class QuantizedMatrix {
 public:
  static constexpr int kUnit = 16;     // columns
  static constexpr int kColumns = 32;  // per panel: two units

  // Bytes in a unit: scales of a block, and codes of 32 inputs.
  static constexpr int scale_bytes(const QuantFormat& f) { return kUnit * f.scale_bytes(); }
  static constexpr int code_bytes(const QuantFormat& f) { return kUnit * 32 * f.bits / 8; }

  // Adjacent rows of one type, such as q, k and v.
  struct Part {
    QuantType type = QuantType::kQ40;
    int64_t outs = 0;
  };
  struct Segment {
    QuantFormat format{};
    int64_t first_out = 0, outs = 0;
    int64_t first_panel = 0, panels = 0;
    int64_t codes_at = 0;    // bytes, from the start of a unit
    int64_t unit_bytes = 0;  // bytes; a multiple of 64
    int64_t at = 0;          // bytes; offset of the first unit in the matrix
  };

  QuantizedMatrix() = default;  // empty
  // Allocates; pack() fills the rows. REQUIRES: `in` is a multiple of every type's block. For
  // Layout::kPairs: two parts of equal type and size; a panel holds a unit of each.
  QuantizedMatrix(const std::vector<Part>& parts, int64_t in, Layout layout = Layout::kInOrder);

  // Sets row `row`, counted over all parts. blocks: the row's blocks as stored in the file.
  void pack(int64_t row, const std::byte* blocks);
  // Writes the exact values of one row. to: [in]
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
  // The two units of a panel.
  const std::byte* panel(const Segment& s, int64_t panel) const {
    return data_.get() + s.at + (panel - s.first_panel) * 2 * s.unit_bytes;
  }

 private:
  struct Place {
    const Segment* segment;
    int64_t unit;  // in bytes
    int column;    // within the unit
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
