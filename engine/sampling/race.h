// Draws by an exponential race (the Gumbel-max trick).
//
// Token v arrives at E_v / w_v, where w_v is its weight and the E_v are independent and
// exponential. The first token to arrive is drawn: v with probability w_v / sum(w). Weights need
// not sum to 1. E_v depends only on the key and v. So two distributions drawn under one key give
// the same token with probability at least (1 - TV) / (1 + TV), TV their total variation distance
// (Daliri et al. 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding",
// arXiv 2408.07978). A draft is accepted if the target draws the same token at its position.
//
// Exact definition. All arithmetic is fp32, rounded to nearest after each operation, never fused:
//
//   word(key, v), a 32-bit hash (Wellons' triple32 with the key added):
//     x = v + key[0];  x ^= x >> 17;  x *= 0xed5ad4bb;  x ^= x >> 11;  x += key[1]
//     x *= 0xac4c1b51;  x ^= x >> 15;  x *= 0x31848bab;  x ^= x >> 14
//   E_v = -ln(1 - u), u = (word + 1/2) * 2^-32: in [2^-33, 1], so E_v is never 0
//   the winner has the largest (w_v * 2^64) / E_v; ties go to the lowest id
//
// Only `exponential` computes E_v, to 3 units in the last place. So all processors draw the same
// token from the same weights. The steps of u shift a probability by at most 2^-33, and the whole
// distribution by less than vocab * 2^-33 (2e-5 for 152k tokens).
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/sampling/random.h"

namespace tandem::sampling {

// -ln(1 - u) for the u of `word`, > 0. Cephes' logf. For u < 1/4 it works on -u, because 1 - u
// would lose the low bits of u.
float exponential(uint32_t word);

inline uint32_t race_word(RaceKey key, uint32_t v) {
  uint32_t x = v + key[0];
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += key[1];
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  x ^= x >> 14;
  return x;
}

// The token drawn, never one of weight 0. weights: in [0, 1], of tokens 0, 1, .. and then of
// `more`, ascending. -1 if all are 0.
Token race(std::span<const float> weights, RaceKey key, std::span<const Token> more = {});

}  // namespace tandem::sampling
