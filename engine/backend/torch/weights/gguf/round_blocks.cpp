#include "engine/backend/torch/weights/gguf/round_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/backend/torch/weights/convert.h"
#include "engine/base/check.h"

namespace tandem {
namespace {

constexpr size_t kBlock = 32;
constexpr size_t kBlocks = 8;  // rounded at a time, one in each lane

// A vector type of the compiler: sums of each block keep their order, and so their bits.
using Lanes = float __attribute__((vector_size(kBlocks * sizeof(float))));
using Values = std::array<Lanes, kBlock>;

Lanes least(Lanes a, Lanes b) { return b < a ? b : a; }
Lanes most(Lanes a, Lanes b) { return b > a ? b : a; }

// value = scale * code + minimum.
struct Line {
  Lanes scale, minimum;

  void codes(const Values& x, Values& to) const {
    constexpr float kWhole = 0x1.8p23f;  // floats of this size are integers
    const Lanes inverse = scale == 0 ? Lanes{} : 1 / scale;
    for (size_t i = 0; i < kBlock; ++i) {
      // In this order, NaN (from an infinite inverse) becomes 0.
      const Lanes code = least(Lanes{} + 15, most(Lanes{}, (x[i] - minimum) * inverse));
      to[i] = (code + kWhole) - kWhole;
    }
  }
  Lanes error(const Values& x, const Values& codes) const {
    Lanes sum{};
    for (size_t i = 0; i < kBlock; ++i) {
      const Lanes error = scale * codes[i] + minimum - x[i];
      sum += error * error;
    }
    return sum;
  }
};

// Least squares fit through the points (code, x); `line` for a block whose codes are all equal.
Line fit(const Values& x, const Values& codes, const Line& line) {
  Lanes n{}, nn{}, s{}, ns{};
  for (size_t i = 0; i < kBlock; ++i) {
    n += codes[i];
    nn += codes[i] * codes[i];
    s += x[i];
    ns += codes[i] * x[i];
  }
  const Lanes spread = kBlock * nn - n * n;
  return {spread > 0 ? (kBlock * ns - n * s) / spread : line.scale,
          spread > 0 ? (nn * s - n * ns) / spread : line.minimum};
}

// The line of Q4_1.
Line line_q41(const Values& x) {
  Lanes low = x[0], high = x[0];
  for (const Lanes& value : x) {
    low = least(low, value);
    high = most(high, value);
  }
  Line best{(high - low) / 15, low};
  Values codes;
  best.codes(x, codes);
  Lanes error = best.error(x, codes);
  for (const float steps : {14.f, 14.5f, 15.f, 15.5f, 16.f}) {
    const Line start{(high - low) / steps, low};
    start.codes(x, codes);
    const Line line = fit(x, codes, start);
    line.codes(x, codes);
    const Lanes e = line.error(x, codes);
    best.scale = e < error ? line.scale : best.scale;
    best.minimum = e < error ? line.minimum : best.minimum;
    error = least(error, e);
  }
  return best;
}

// The line of Q4_0: value = scale * (code - 8). steps: divisions of the largest magnitude.
Line line_q40(const Values& x, std::span<const float> steps) {
  Lanes largest{};  // by magnitude
  for (const Lanes& value : x) {
    largest = most(value, -value) > most(largest, -largest) ? value : largest;
  }
  Lanes best = largest / -8, error{};
  error += std::numeric_limits<float>::infinity();
  Values codes;
  for (const float step : steps) {
    Lanes scale = largest / step;
    for (int fits = 0; fits < 2; ++fits) {  // the second one by least squares
      const Line line{scale, -8 * scale};
      line.codes(x, codes);
      const Lanes e = line.error(x, codes);
      best = e < error ? scale : best;
      error = least(error, e);
      Lanes nn{}, ns{};
      for (size_t i = 0; i < kBlock; ++i) {
        nn += (codes[i] - 8) * (codes[i] - 8);
        ns += (codes[i] - 8) * x[i];
      }
      scale = nn == 0 ? scale : ns / nn;
    }
  }
  return {best, -8 * best};
}

// Rounds to fp16 and stores it. False: overflow.
bool round_half(float& number, std::byte* to) {
  if (!(std::fabs(number) <= 65504)) return false;
  uint16_t bits = 0;
  const TensorView view{.dtype = SafeDType::kF32,
                        .shape = {1},
                        .data = reinterpret_cast<const std::byte*>(&number),
                        .bytes = sizeof(number)};
  TANDEM_CHECK(to_half(view, 0, {&bits, 1}).ok());
  std::memcpy(to, &bits, sizeof(bits));
  number = half_to_float(bits);
  return true;
}

// Rounds up to kBlocks blocks of four-bit codes. False: a scale or minimum overflows fp16.
bool round_4_bits(BlockType type, const Values& x, size_t blocks, bool quick, std::byte* to) {
  constexpr float kSteps[] = {-9.f, -8.5f, -8.f, -7.75f, -7.5f, -7.25f, 7.f, 7.5f, 8.f};
  const bool minimum = type == BlockType::kQ41;
  const size_t header = minimum ? 4 : 2, bytes = header + kBlock / 2;
  Line line = minimum ? line_q41(x)
                      : line_q40(x, quick ? std::span(kSteps).subspan(3, 1) : std::span(kSteps));
  for (size_t block = 0; block < blocks; ++block) {
    float scale = line.scale[block], low = line.minimum[block];
    if (!round_half(scale, to + block * bytes)) return false;
    if (minimum && !round_half(low, to + block * bytes + 2)) return false;
    line.scale[block] = scale;
    line.minimum[block] = minimum ? low : -8 * scale;
  }
  Values codes;
  line.codes(x, codes);
  for (size_t block = 0; block < blocks; ++block) {
    std::byte* const packed = to + block * bytes + header;
    for (size_t i = 0; i < kBlock / 2; ++i) {
      const auto first = static_cast<uint8_t>(codes[i][block]);
      const auto second = static_cast<uint8_t>(codes[i + kBlock / 2][block]);
      packed[i] = static_cast<std::byte>(first | second << 4);
    }
  }
  return true;
}

bool round_q80(std::span<const float, kBlock> x, std::byte* to) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::fabs(value));
  float scale = most / 127;
  if (!round_half(scale, to)) return false;
  for (size_t i = 0; i < kBlock; ++i) {
    const float code = scale == 0 ? 0 : std::clamp(std::nearbyint(x[i] / scale), -127.f, 127.f);
    to[2 + i] = static_cast<std::byte>(static_cast<int8_t>(code));
  }
  return true;
}

}  // namespace

bool round_row(BlockType type, std::span<const float> values, std::byte* to, bool quick) {
  TANDEM_CHECK(values.size() % kBlock == 0);
  TANDEM_CHECK(type == BlockType::kQ40 || type == BlockType::kQ41 || type == BlockType::kQ80);
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
    return false;
  }
  const auto bytes = static_cast<size_t>(find_block_format(static_cast<uint32_t>(type))->bytes);
  for (size_t first = 0; first < values.size();) {
    if (type == BlockType::kQ80) {
      if (!round_q80(values.subspan(first).first<kBlock>(), to)) return false;
      first += kBlock;
      to += bytes;
      continue;
    }
    const size_t blocks = std::min(kBlocks, (values.size() - first) / kBlock);
    Values x{};
    for (size_t block = 0; block < blocks; ++block) {
      for (size_t i = 0; i < kBlock; ++i) x[i][block] = values[first + block * kBlock + i];
    }
    if (!round_4_bits(type, x, blocks, quick, to)) return false;
    first += blocks * kBlock;
    to += blocks * bytes;
  }
  return true;
}

}  // namespace tandem
