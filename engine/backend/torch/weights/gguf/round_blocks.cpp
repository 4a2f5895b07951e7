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
using Block = std::span<const float, kBlock>;
using Codes = std::array<float, kBlock>;  // integers

// value = scale * code + minimum.
struct Line {
  float scale = 0;
  float minimum = 0;

  void codes(Block x, Codes& to) const {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (size_t i = 0; i < kBlock; ++i) {
      to[i] = std::clamp(std::nearbyint((x[i] - minimum) * inverse), 0.f, 15.f);
    }
  }
  float error(Block x, const Codes& codes) const {
    float sum = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      const float error = scale * codes[i] + minimum - x[i];
      sum += error * error;
    }
    return sum;
  }
};

// Least squares fit through the points (code, x); returns `line` if all codes are equal.
Line fit(Block x, const Codes& codes, const Line& line) {
  float n = 0, nn = 0, s = 0, ns = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    n += codes[i];
    nn += codes[i] * codes[i];
    s += x[i];
    ns += codes[i] * x[i];
  }
  const float spread = kBlock * nn - n * n;
  if (spread <= 0) return line;
  return {(kBlock * ns - n * s) / spread, (nn * s - n * ns) / spread};
}

Line best_line(Block x) {
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  Line best{(*most - *least) / 15, *least};
  Codes codes;
  best.codes(x, codes);
  float error = best.error(x, codes);
  for (const float steps : {14.f, 14.5f, 15.f, 15.5f, 16.f}) {
    const Line start{(*most - *least) / steps, *least};
    start.codes(x, codes);
    const Line line = fit(x, codes, start);
    line.codes(x, codes);
    if (const float e = line.error(x, codes); e < error) {
      best = line;
      error = e;
    }
  }
  return best;
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

bool round_q41(Block x, std::byte* to) {
  Line line = best_line(x);
  if (!round_half(line.scale, to) || !round_half(line.minimum, to + 2)) return false;
  Codes codes;
  line.codes(x, codes);
  for (size_t i = 0; i < kBlock / 2; ++i) {
    const auto low = static_cast<uint8_t>(codes[i]);
    const auto high = static_cast<uint8_t>(codes[i + kBlock / 2]);
    to[4 + i] = static_cast<std::byte>(low | high << 4);
  }
  return true;
}

// value = scale * (code - 8).
bool round_q40(Block x, std::byte* to) {
  float most = 0;  // of the largest magnitude
  for (const float value : x) most = std::fabs(value) > std::fabs(most) ? value : most;
  float best = most / -8, least = std::numeric_limits<float>::infinity();
  Codes codes;
  for (const float steps : {-9.f, -8.5f, -8.f, -7.75f, -7.5f, -7.25f, 7.f, 7.5f, 8.f}) {
    float scale = most / steps;
    for (int fits = 0; fits < 2; ++fits) {  // the second one by least squares
      const Line line{scale, -8 * scale};
      line.codes(x, codes);
      if (const float error = line.error(x, codes); error < least) {
        least = error;
        best = scale;
      }
      float nn = 0, ns = 0;
      for (size_t i = 0; i < kBlock; ++i) {
        nn += (codes[i] - 8) * (codes[i] - 8);
        ns += (codes[i] - 8) * x[i];
      }
      if (nn == 0) break;
      scale = ns / nn;
    }
  }
  if (!round_half(best, to)) return false;
  Line{best, -8 * best}.codes(x, codes);
  for (size_t i = 0; i < kBlock / 2; ++i) {
    const auto low = static_cast<uint8_t>(codes[i]);
    const auto high = static_cast<uint8_t>(codes[i + kBlock / 2]);
    to[2 + i] = static_cast<std::byte>(low | high << 4);
  }
  return true;
}

bool round_q80(Block x, std::byte* to) {
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

bool round_row(BlockType type, std::span<const float> values, std::byte* to) {
  TANDEM_CHECK(values.size() % kBlock == 0);
  const auto round = type == BlockType::kQ40   ? &round_q40
                     : type == BlockType::kQ41 ? &round_q41
                                               : &round_q80;
  const size_t bytes = type == BlockType::kQ40 ? 18 : type == BlockType::kQ41 ? 20 : 34;
  TANDEM_CHECK(type == BlockType::kQ40 || type == BlockType::kQ41 || type == BlockType::kQ80);
  for (size_t i = 0; i < values.size(); i += kBlock, to += bytes) {
    const Block block(&values[i], kBlock);
    if (!std::all_of(block.begin(), block.end(), [](float x) { return std::isfinite(x); })) {
      return false;
    }
    if (!round(block, to)) return false;
  }
  return true;
}

}  // namespace tandem
