#include "engine/backend/torch/cpu/quantized_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/backend/torch/cpu/weight_memory.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Codes of 32 inputs of one column, a byte each: eight per word, the first in the lowest byte.
using Codes = std::array<uint64_t, 4>;
static_assert(std::endian::native == std::endian::little);

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
uint8_t byte(const std::byte* from) { return static_cast<uint8_t>(*from); }
float half(const std::byte* from) { return static_cast<float>(load<_Float16>(from)); }

constexpr uint64_t kOnes = 0x0101010101010101;  // 1 in each byte
uint64_t low_halves(uint64_t bytes) { return bytes & 15 * kOnes; }

// Returns a word whose byte i is bit i of `bits`.
uint64_t spread(uint8_t bits) {
  const uint64_t each = bits * kOnes & 0x8040201008040201;
  return (each + 127 * kOnes) >> 7 & kOnes;
}

// read_*: codes of the g-th 32 inputs of a block in the file's format.
//
// Formats with blocks of 32: inputs 0..15 in low nibbles, 16..31 in high nibbles, fifth bits in one
// word before them.
void read_small(const std::byte* block, int bits, int scales_bytes, Codes& codes) {
  const std::byte* at = block + scales_bytes;
  if (bits == 8) {
    // Signed to unsigned: 0 becomes 128.
    for (size_t i = 0; i < 4; ++i) codes[i] = load<uint64_t>(at + 8 * i) ^ 128 * kOnes;
    return;
  }
  const std::byte* fifths = at;
  if (bits == 5) at += 4;
  for (size_t i = 0; i < 2; ++i) {
    const auto nibbles = load<uint64_t>(at + 8 * i);
    codes[i] = low_halves(nibbles);
    codes[i + 2] = low_halves(nibbles >> 4);
  }
  for (size_t i = 0; bits == 5 && i < 4; ++i) codes[i] |= spread(byte(fifths + i)) << 4;
}

// Q4_K, Q5_K: d, dmin, 12 bytes of s and n, fifth bits (Q5_K), nibbles.
void read_two_levels(const std::byte* block, int bits, int g, Codes& codes) {
  const std::byte* fifths = block + 16;
  const std::byte* nibbles = block + (bits == 5 ? 48 : 16) + g / 2 * 32;
  for (size_t i = 0; i < 4; ++i) {
    codes[i] = low_halves(load<uint64_t>(nibbles + 8 * i) >> g % 2 * 4);
    if (bits == 5) codes[i] |= (load<uint64_t>(fifths + 8 * i) >> g & kOnes) << 4;
  }
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 scales, d.
void read_sixteens(const std::byte* block, int g, Codes& codes) {
  const std::byte* nibbles = block + g / 4 * 64 + g % 2 * 32;
  const std::byte* twos = block + 128 + g / 4 * 32;
  for (size_t i = 0; i < 4; ++i) {
    codes[i] = low_halves(load<uint64_t>(nibbles + 8 * i) >> g % 4 / 2 * 4) |
               (load<uint64_t>(twos + 8 * i) >> g % 4 * 2 & 3 * kOnes) << 4;
  }
}

void read_codes(const QuantFormat& f, const std::byte* block, int g, Codes& codes) {
  switch (f.scales) {
    case QuantScales::kScale:
      return read_small(block, f.bits, 2, codes);
    case QuantScales::kScaleAndMin:
      return read_small(block, f.bits, 4, codes);
    case QuantScales::kTwoLevels:
      return read_two_levels(block, f.bits, g, codes);
    case QuantScales::kSixteens:
      return read_sixteens(block, g, codes);
  }
}

// Stores the codes of 32 inputs of one column in a unit.
void put_codes(uint8_t* unit, int bits, int column, const Codes& codes) {
  uint8_t* at = unit + static_cast<size_t>(column) * 4;
  const auto four = [&](size_t quad) {
    return static_cast<uint32_t>(codes[quad / 2] >> quad % 2 * 32);
  };
  const auto store = [&](size_t to, uint32_t value) { std::memcpy(at + to, &value, 4); };
  if (bits == 8) {
    for (size_t quad = 0; quad < 8; ++quad) store(64 * quad, four(quad));
    return;
  }
  constexpr uint32_t kFourOnes = 0x01010101;
  uint32_t fifths = 0, twos[2] = {};
  for (size_t quad = 0; quad < 4; ++quad) {
    const uint32_t low = four(quad), high = four(quad + 4);
    store(64 * quad, (low & 15 * kFourOnes) | (high & 15 * kFourOnes) << 4);
    fifths |= (low >> 4 & kFourOnes) << quad | (high >> 4 & kFourOnes) << (quad + 4);
    twos[0] |= (low >> 4 & 3 * kFourOnes) << 2 * quad;
    twos[1] |= (high >> 4 & 3 * kFourOnes) << 2 * quad;
  }
  if (bits == 5) store(256, fifths);
  if (bits == 6) store(256, twos[0]);
  if (bits == 6) store(320, twos[1]);
}

void get_codes(const uint8_t* unit, int bits, int column, std::array<uint8_t, 32>& codes) {
  for (size_t i = 0; i < 32; ++i) {
    const size_t quad = i / 4, at = static_cast<size_t>(column) * 4 + i % 4;
    int code =
        bits == 8 ? unit[64 * quad + at] : unit[64 * (quad % 4) + at] >> (quad < 4 ? 0 : 4) & 15;
    if (bits == 5) code |= (unit[256 + at] >> quad & 1) << 4;
    if (bits == 6) code |= (unit[256 + 64 * (quad / 4) + at] >> 2 * (quad % 4) & 3) << 4;
    codes[i] = static_cast<uint8_t>(code);
  }
}

// Reads the 6-bit s and n of Q4_K and Q5_K. Groups 0..3 are in bytes 0..7. Groups 4..7 have their
// low four bits in bytes 8..11 and their upper two in the upper bits of bytes 0..7.
std::array<uint32_t, 16> read_sixes(const std::byte* from) {
  std::array<uint32_t, 16> sixes;
  for (size_t g = 0; g < 4; ++g) {
    sixes[g] = byte(from + g) & 63u;
    sixes[g + 8] = byte(from + g + 4) & 63u;
    sixes[g + 4] = (byte(from + g + 8) & 15u) | static_cast<uint32_t>(byte(from + g) >> 6) << 4;
    sixes[g + 12] = byte(from + g + 8) >> 4 | static_cast<uint32_t>(byte(from + g + 4) >> 6) << 4;
  }
  return sixes;
}

// Stores the scales of one block of a column. to: the block's scales in the unit.
void put_scales(std::byte* to, const QuantFormat& f, int column, const std::byte* block) {
  const auto at = static_cast<size_t>(column);
  const auto copy_half = [&](size_t place, size_t from) {
    std::memcpy(to + place + 2 * at, block + from, 2);
  };
  switch (f.scales) {
    case QuantScales::kScale:
      return copy_half(0, 0);
    case QuantScales::kScaleAndMin:
      copy_half(0, 0);
      return copy_half(32, 2);
    case QuantScales::kTwoLevels: {
      copy_half(0, 0);
      copy_half(32, 2);
      const std::array<uint32_t, 16> sixes = read_sixes(block + 4);
      for (size_t word = 0; word < 3; ++word) {
        uint32_t bits = sixes[15] >> 2 * word << 30;
        for (size_t k = 0; k < 5; ++k) bits |= sixes[5 * word + k] << 6 * k;
        std::memcpy(to + 64 + 64 * word + 4 * at, &bits, 4);
      }
      return;
    }
    case QuantScales::kSixteens:
      for (size_t g = 0; g < 16; ++g) to[16 * g + at] = block[192 + g];
      return copy_half(256, 208);
  }
}

// value = scale (q - zero) - less, for 16 inputs.
struct Line {
  float scale, less;
};
Line line_of(const std::byte* scales, const QuantFormat& f, int column, int sixteen) {
  const auto at = static_cast<size_t>(column);
  const float d = half(scales + 2 * at);
  switch (f.scales) {
    case QuantScales::kScale:
      return {d, 0};
    case QuantScales::kScaleAndMin:
      return {d, -half(scales + 32 + 2 * at)};
    case QuantScales::kTwoLevels: {
      const auto six = [&](int i) {
        const auto word = [&](int k) {
          return load<uint32_t>(scales + 64 + 64 * static_cast<size_t>(k) + 4 * at);
        };
        if (i < 15) return static_cast<float>(word(i / 5) >> i % 5 * 6 & 63);
        return static_cast<float>(word(0) >> 30 | word(1) >> 30 << 2 | word(2) >> 30 << 4);
      };
      const int g = sixteen / 2;
      return {d * six(g), half(scales + 32 + 2 * at) * six(8 + g)};
    }
    default: {
      const auto s = static_cast<int8_t>(scales[static_cast<size_t>(sixteen) * 16 + at]);
      return {half(scales + 256 + 2 * at) * static_cast<float>(s), 0};
    }
  }
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

QuantizedMatrix::QuantizedMatrix(const std::vector<Part>& parts, int64_t in, Layout layout)
    : in_(in), layout_(layout) {
  TANDEM_CHECK(!parts.empty());
  std::vector<Part> stretches = parts;  // one segment each
  if (layout == Layout::kPairs) {
    TANDEM_CHECK(parts.size() == 2 && parts[0].type == parts[1].type &&
                 parts[0].outs == parts[1].outs);
    stretches = {{parts[0].type, 2 * parts[0].outs}};
  }
  for (const Part& part : stretches) {
    Segment s;
    s.format = quant_format(part.type);
    TANDEM_CHECK(part.outs > 0 && in > 0 && in % s.format.inputs() == 0);
    s.first_out = outs_;
    s.outs = part.outs;
    s.first_panel = panels_;
    const int64_t side = layout == Layout::kPairs ? 2 * kUnit : kColumns;
    s.panels = (part.outs + side - 1) / side;
    s.codes_at = round_up(in / s.format.inputs() * scale_bytes(s.format), 64);
    s.unit_bytes = s.codes_at + in / 32 * code_bytes(s.format);
    s.at = bytes_;
    outs_ += s.outs;
    panels_ += s.panels;
    bytes_ += s.panels * 2 * s.unit_bytes;
    segments_.push_back(s);
  }
  data_ = allocate_weights(static_cast<size_t>(bytes_));
  // Clear the padding. The rest is first touched by the threads that pack it.
  for (const Segment& s : segments_) {
    const int64_t side = layout == Layout::kPairs ? 2 * kUnit : kColumns;
    if (s.outs % side == 0) continue;
    const int64_t panel = 2 * s.unit_bytes;
    std::memset(data_.get() + s.at + (s.panels - 1) * panel, 0, static_cast<size_t>(panel));
  }
}

QuantizedMatrix::Place QuantizedMatrix::place(int64_t row) const {
  const auto segment = std::find_if(segments_.begin(), segments_.end(),
                                    [&](const Segment& s) { return row < s.first_out + s.outs; });
  const Segment& s = *segment;
  const int64_t i = row - s.first_out;
  int64_t unit = i / kUnit;
  if (layout_ == Layout::kPairs) {
    const int64_t side = i / (s.outs / 2);
    unit = 2 * ((i - side * (s.outs / 2)) / kUnit) + side;
    return {&s, s.at + unit * s.unit_bytes, static_cast<int>((i - side * (s.outs / 2)) % kUnit)};
  }
  return {&s, s.at + unit * s.unit_bytes, static_cast<int>(i % kUnit)};
}

void QuantizedMatrix::pack(int64_t row, const std::byte* blocks) {
  TANDEM_CHECK(row >= 0 && row < outs_);
  const Place to = place(row);
  const QuantFormat& f = to.segment->format;
  std::byte* unit = data_.get() + to.unit;
  auto* codes = reinterpret_cast<uint8_t*>(unit + to.segment->codes_at);
  Codes some;
  for (int64_t block = 0; block < in_ / f.inputs(); ++block, blocks += f.block_bytes()) {
    put_scales(unit + block * scale_bytes(f), f, to.column, blocks);
    for (int g = 0; g < f.inputs() / 32; ++g, codes += code_bytes(f)) {
      read_codes(f, blocks, g, some);
      put_codes(codes, f.bits, to.column, some);
    }
  }
}

void QuantizedMatrix::unpack(int64_t row, float* to) const {
  const Place from = place(row);
  const QuantFormat& f = from.segment->format;
  const std::byte* unit = data_.get() + from.unit;
  const auto* codes = reinterpret_cast<const uint8_t*>(unit + from.segment->codes_at);
  std::array<uint8_t, 32> some{};
  for (int64_t i = 0; i < in_; i += 16) {
    if (i % 32 == 0) {
      get_codes(codes, f.bits, from.column, some);
      codes += code_bytes(f);
    }
    const int sixteen = static_cast<int>(i % f.inputs() / 16);
    const Line line = line_of(unit + i / f.inputs() * scale_bytes(f), f, from.column, sixteen);
    const uint8_t* const half = some.data() + i % 32;
    for (int k = 0; k < 16; ++k) {
      to[i + k] = line.scale * static_cast<float>(half[k] - f.zero) - line.less;
    }
  }
}

}  // namespace tandem::cpu
