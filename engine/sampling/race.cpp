#include "engine/sampling/race.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace tandem::sampling {
namespace {

constexpr float kScale = 0x1p64f;  // keeps quotients of the smallest weights normal numbers
constexpr size_t kGroup = 64;      // tokens per call of may_win()

float unit(uint32_t word) { return (static_cast<float>(word) + 0.5f) * 0x1p-32f; }

// Whether a token of [begin, end) may beat `best`: a cheap, vectorized upper bound. E > u up to
// rounding, so tokens with w / u below `best` cannot. Of n tokens in any order, about ln(n) beat
// all before them, so it is rarely true.
bool may_win(const float* weight, size_t begin, size_t end, RaceKey key, float best) {
  const float bar = best * (0.9999f / kScale);
  uint32_t any = 0;
  for (size_t i = begin; i < end; ++i) {
    const float u = unit(race_word(key, static_cast<uint32_t>(i)));
    any |= weight[i] > bar * u ? 1u : 0u;
  }
  return any != 0;
}

}  // namespace

float exponential(uint32_t word) {
#pragma clang fp contract(off)
  float f;  // 1 - u = 2^e * (1 + f)
  float e = 0;
  if (word < 0x40000000u) {
    f = -unit(word);
  } else {
    const uint32_t rest = std::bit_cast<uint32_t>(unit(~word));  // 1 - u, exactly as u is
    const uint32_t above = rest - 0x3f3504f3u;                   // sqrt(1/2)
    e = static_cast<float>(static_cast<int32_t>(above) >> 23);
    f = std::bit_cast<float>((above & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  }
  const float z = f * f;
  float y = 7.0376836292e-2f;
  y = y * f - 1.1514610310e-1f;
  y = y * f + 1.1676998740e-1f;
  y = y * f - 1.2420140846e-1f;
  y = y * f + 1.4249322787e-1f;
  y = y * f - 1.6668057665e-1f;
  y = y * f + 2.0000714765e-1f;
  y = y * f - 2.4999993993e-1f;
  y = y * f + 3.3333331174e-1f;
  y = y * f;
  y = y * z;
  y = y + e * -2.12194440e-4f;
  y = y - 0.5f * z;
  return -((f + y) + e * 0.693359375f);
}

Token race(std::span<const float> weights, RaceKey key, std::span<const Token> more) {
  float best = 0;
  Token winner = -1;
  const auto enter = [&](float weight, Token token) {
    const float score = weight * kScale / exponential(race_word(key, static_cast<uint32_t>(token)));
    if (score <= best) return;
    best = score;
    winner = token;
  };
  const size_t first = weights.size() - more.size();
  for (size_t begin = 0; begin < first; begin += kGroup) {
    const size_t end = std::min(begin + kGroup, first);
    if (!may_win(weights.data(), begin, end, key, best)) continue;
    for (size_t i = begin; i < end; ++i) enter(weights[i], static_cast<Token>(i));
  }
  for (size_t i = 0; i < more.size(); ++i) enter(weights[first + i], more[i]);
  return winner;
}

}  // namespace tandem::sampling
