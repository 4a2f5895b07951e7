// Conversion of quantized matrices from the CPU's layout (cpu/quantized_matrix.h) to that of
// kernels/quantized.h, on the host at load. Values stay the same. The 6-bit factors of kTwoLevels
// are widened to bytes, and 5-bit codes to 6 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/cuda/kernels/quantized.h"

namespace tandem::cuda {

// Shape of one segment. Each segment becomes a matrix of its own.
inline BlockShape block_shape(const cpu::QuantizedMatrix& m, size_t segment = 0) {
  const cpu::QuantizedMatrix::Segment& s = m.segments()[segment];
  return {s.outs, m.in(), m.layout() == cpu::Layout::kPairs, s.format.type};
}

// Reads one unit of the CPU's layout: 16 outs, all inputs.
class UnitPacker {
 public:
  UnitPacker(const std::byte* unit, const cpu::QuantizedMatrix::Segment& segment)
      : scales_(unit),
        codes_(unit + segment.codes_at),
        f_(segment.format),
        layout_(layout_of(f_.type)) {}

  // Writes step `step`; groups past the end are zero. to: step_words() * 16 bytes.
  void pack(std::byte* to, int step, int groups) const {
    std::memset(to, 0, static_cast<size_t>(layout_.step_words()) * 16);
    std::byte* const scales = to + layout_.code_words() * kWarp * 16;
    std::byte* const more = scales + 8 * 16;
    for (int j = 0; j < kStepGroups && step * kStepGroups + j < groups; ++j) {
      const int group = step * kStepGroups + j;
      for (int lane = 0; lane < kWarp; ++lane) pack_codes(to, group, j, lane);
      for (int g = 0; g < 8; ++g) {
        put(scales + 16 * g + 4 * j, scale_word(group, g));
        if (layout_.scales == QuantScales::kScaleAndMin) {
          put(more + 16 * g + 4 * j, halves(group, 32, g));
        }
      }
    }
    const std::byte* const block = scales_ + step / 2 * cpu::QuantizedMatrix::scale_bytes(f_);
    for (int out = 0; out < kTileOuts; ++out) {
      if (layout_.scales == QuantScales::kTwoLevels) {
        std::byte* const at = more + 8 * (out % 8) + 4 * (out / 8);
        std::memcpy(at, block + 2 * out, 2);
        std::memcpy(at + 2, block + 32 + 2 * out, 2);
      } else if (layout_.scales == QuantScales::kSixteens) {
        std::memcpy(more + 4 * (out % 8) + 2 * (out / 8), block + 256 + 2 * out, 2);
      }
    }
  }

 private:
  static void put(std::byte* to, uint32_t word) { std::memcpy(to, &word, 4); }
  static uint32_t get(const std::byte* from) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    return word;
  }

  const std::byte* codes(int group) const {
    return codes_ + int64_t{group} * cpu::QuantizedMatrix::code_bytes(f_);
  }

  // The i-th word of an out's codes in a group. 8 bits: inputs 4i .. 4i + 3. Otherwise the lower
  // four bits of inputs 4i .. in low nibbles and of inputs 16 + 4i .. in high nibbles.
  uint32_t four(int group, int i, int out) const { return get(codes(group) + 64 * i + 4 * out); }

  // Bits above the lower four of inputs 4i .. 4i + 3, in the two low bits of each byte.
  uint32_t upper(int group, int i, int out) const {
    const std::byte* const at = codes(group) + 256 + 4 * out;
    return f_.bits == 5 ? get(at) >> i & 0x01010101
                        : get(at + i / 4 * 64) >> i % 4 * 2 & 0x03030303;
  }

  void pack_codes(std::byte* to, int group, int j, int lane) const {
    const int g = lane / 4, t = lane % 4;
    if (layout_.bits == 8) {
      std::byte* const at = to + 16 * (j * kWarp + lane);
      for (int i = 0; i < 4; ++i) put(at + 4 * i, four(group, t + i / 2 * 4, g + i % 2 * 8));
      return;
    }
    std::byte* const at = to + 16 * (j / 2 * kWarp + lane) + j % 2 * 8;
    for (int i = 0; i < 2; ++i) put(at + 4 * i, four(group, t, g + 8 * i));
    if (layout_.bits == 4) return;
    uint32_t all = 0;
    for (int i = 0; i < 4; ++i) all |= upper(group, t + i / 2 * 4, g + i % 2 * 8) << 2 * i;
    put(to + 16 * (2 * kWarp + lane) + 4 * j, all);
  }

  // Two fp16, of outs g and g + 8. at: offset in the block's scales.
  uint32_t halves(int group, int at, int g) const {
    const std::byte* const from =
        scales_ + int64_t{group} * cpu::QuantizedMatrix::scale_bytes(f_) + at;
    uint16_t two[2];
    std::memcpy(&two[0], from + 2 * g, 2);
    std::memcpy(&two[1], from + 2 * (g + 8), 2);
    return two[0] | uint32_t{two[1]} << 16;
  }

  uint32_t scale_word(int group, int g) const {
    const int k = group % 8;
    if (layout_.scales == QuantScales::kTwoLevels) {
      return six(group, k, g) | six(group, 8 + k, g) << 8 | six(group, k, g + 8) << 16 |
             six(group, 8 + k, g + 8) << 24;
    }
    if (layout_.scales == QuantScales::kSixteens) {
      return sixteenth(group, 2 * k, g) | sixteenth(group, 2 * k + 1, g) << 8 |
             sixteenth(group, 2 * k, g + 8) << 16 | sixteenth(group, 2 * k + 1, g + 8) << 24;
    }
    return halves(group, 0, g);
  }

  // The i-th of an out's sixteen 6-bit numbers.
  uint32_t six(int group, int i, int out) const {
    const std::byte* const words =
        scales_ + int64_t{group / 8} * cpu::QuantizedMatrix::scale_bytes(f_) + 64 + 4 * out;
    const auto word = [&](int k) { return get(words + int64_t{64} * k); };
    if (i < 15) return word(i / 5) >> i % 5 * 6 & 63;
    return word(0) >> 30 | word(1) >> 30 << 2 | word(2) >> 30 << 4;
  }

  // Scale of the i-th 16 inputs of a block.
  uint32_t sixteenth(int group, int i, int out) const {
    return static_cast<uint32_t>(
        scales_[int64_t{group / 8} * cpu::QuantizedMatrix::scale_bytes(f_) + int64_t{16} * i +
                out]);
  }

  const std::byte* scales_;
  const std::byte* codes_;
  const QuantFormat f_;
  const BlockLayout layout_;
};

// Packs tiles [begin, end) of a segment. to: all tiles, s.words() * 16 bytes. s: from
// block_shape().
inline void pack_blocks(std::byte* to, const cpu::QuantizedMatrix& m, size_t segment,
                        const BlockShape& s, int64_t begin, int64_t end) {
  const cpu::QuantizedMatrix::Segment& from = m.segments()[segment];
  const int64_t step_bytes = int64_t{layout_of(s.type).step_words()} * 16;
  for (int64_t tile = begin; tile < end; ++tile) {
    const UnitPacker unit(m.panel(from, from.first_panel + tile / 2) + tile % 2 * from.unit_bytes,
                          from);
    for (int step = 0; step < s.steps(); ++step) {
      unit.pack(to + (tile * s.steps() + step) * step_bytes, step, s.groups());
    }
  }
}

}  // namespace tandem::cuda
