// A quantized matrix as kernels/quantized.h reads it, of the CPU's (cpu/quantized_matrix.h): the
// same bytes in another order, and of two levels the numbers of 6 bits in bytes. On the host, at
// load. Only tests include this: no model loads quantized weights on CUDA yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/cuda/kernels/quantized.h"

namespace tandem::cuda {

// Null: there is no product on the device for these blocks, or for several types side by side.
inline std::optional<BlockShape> block_shape(const cpu::QuantizedMatrix& m) {
  if (m.segments().size() != 1) return std::nullopt;
  const cpu::QuantFormat& f = m.segments().front().format;
  BlockShape s;
  s.outs = m.outs();
  s.in = m.in();
  s.pairs = m.layout() == cpu::Layout::kPairs;
  if (f.scales == cpu::Scales::kScale && f.bits == 8) {
    s.kind = BlockKind::kEights;
  } else if (f.scales == cpu::Scales::kScale && f.bits == 4) {
    s.kind = BlockKind::kFours;
  } else if (f.scales == cpu::Scales::kTwoLevels && f.bits == 4) {
    s.kind = BlockKind::kTwoLevelFours;
  } else {
    return std::nullopt;
  }
  return s;
}

// One unit of the CPU's: 16 outs, all inputs.
class UnitPacker {
 public:
  UnitPacker(const std::byte* unit, const cpu::QuantizedMatrix::Segment& segment, BlockKind kind)
      : scales_(unit), codes_(unit + segment.codes_at), f_(segment.format), kind_(kind) {}

  // Step `step`, of groups that there are; zeros behind them. to: step_words() * 16 bytes
  void pack(std::byte* to, int step, int groups) const {
    const int words = BlockShape::code_words(kind_);
    std::memset(to, 0, static_cast<size_t>(BlockShape::step_words(kind_)) * 16);
    for (int j = 0; j < kStepGroups && step * kStepGroups + j < groups; ++j) {
      const int group = step * kStepGroups + j;
      for (int lane = 0; lane < kWarp; ++lane) pack_codes(to, group, j, lane);
      std::byte* const scales = to + words * kWarp * 16;
      for (int g = 0; g < 8; ++g) put(scales + 16 * g + 4 * j, scale_word(group, g));
    }
    if (kind_ != BlockKind::kTwoLevelFours) return;
    std::byte* const levels = to + (words * kWarp + 8) * 16;
    for (int out = 0; out < 16; ++out) {
      std::byte* const at = levels + 8 * (out % 8) + 4 * (out / 8);
      const std::byte* const block = scales_ + step / 2 * f_.scale_bytes();
      std::memcpy(at, block + 2 * out, 2);
      std::memcpy(at + 2, block + 32 + 2 * out, 2);
    }
  }

 private:
  static void put(std::byte* to, uint32_t word) { std::memcpy(to, &word, 4); }

  // Four inputs of an out as the CPU has them: of 4 bits those 16 further on in the high halves.
  uint32_t four(int group, int i, int out) const {
    uint32_t word;
    std::memcpy(&word, codes_ + int64_t{group} * f_.code_bytes() + 64 * i + 4 * out, 4);
    return word;
  }

  void pack_codes(std::byte* to, int group, int j, int lane) const {
    const int g = lane / 4, t = lane % 4;
    if (kind_ == BlockKind::kEights) {
      std::byte* const at = to + 16 * (j * kWarp + lane);
      for (int i = 0; i < 4; ++i) put(at + 4 * i, four(group, t + i / 2 * 4, g + i % 2 * 8));
      return;
    }
    std::byte* const at = to + 16 * (j / 2 * kWarp + lane) + j % 2 * 8;
    for (int i = 0; i < 2; ++i) put(at + 4 * i, four(group, t, g + 8 * i));
  }

  uint32_t scale_word(int group, int g) const {
    if (kind_ == BlockKind::kTwoLevelFours) {
      const int k = group % 8;
      return six(group, k, g) | six(group, 8 + k, g) << 8 | six(group, k, g + 8) << 16 |
             six(group, 8 + k, g + 8) << 24;
    }
    uint16_t halves[2];
    std::memcpy(&halves[0], scales_ + int64_t{group} * f_.scale_bytes() + 2 * g, 2);
    std::memcpy(&halves[1], scales_ + int64_t{group} * f_.scale_bytes() + 2 * (g + 8), 2);
    return halves[0] | uint32_t{halves[1]} << 16;
  }

  // Number i of an out's sixteen of 6 bits.
  uint32_t six(int group, int i, int out) const {
    const std::byte* const words = scales_ + int64_t{group / 8} * f_.scale_bytes() + 64 + 4 * out;
    uint32_t word[3];
    for (int k = 0; k < 3; ++k) std::memcpy(&word[k], words + 64 * k, 4);
    if (i < 15) return word[i / 5] >> i % 5 * 6 & 63;
    return word[0] >> 30 | word[1] >> 30 << 2 | word[2] >> 30 << 4;
  }

  const std::byte* scales_;
  const std::byte* codes_;
  const cpu::QuantFormat f_;
  const BlockKind kind_;
};

// to: [s.words() * 16] bytes. s: block_shape(m)
inline void pack_blocks(std::byte* to, const cpu::QuantizedMatrix& m, const BlockShape& s) {
  const cpu::QuantizedMatrix::Segment& segment = m.segments().front();
  const int64_t step_bytes = int64_t{BlockShape::step_words(s.kind)} * 16;
  for (int64_t tile = 0; tile < s.tiles(); ++tile) {
    const UnitPacker unit(m.panel(segment, tile / 2) + tile % 2 * segment.unit_bytes, segment,
                          s.kind);
    for (int step = 0; step < s.steps(); ++step, to += step_bytes) {
      unit.pack(to, step, s.groups());
    }
  }
}

}  // namespace tandem::cuda
