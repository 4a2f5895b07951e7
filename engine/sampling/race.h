// A draw as an exponential race (the Gumbel-max trick).
//
// Every token v with a weight runs, and arrives after E_v / w_v, where the E_v are independent and
// exponential; the first to arrive is drawn. It is v with probability w_v / sum(w): the weights
// need not sum to 1, and nothing is summed up. E_v depends on the key and on v alone. So two
// distributions that are drawn from under one key mostly give the same token: at least with
// probability (1 - TV) / (1 + TV), TV their total variation distance (Daliri et al. 2024, "Coupling
// without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).
// That is what makes a draft right: the token that its target draws there.
//
// Exactly, with all arithmetic in fp32, rounded to nearest after each operation and never fused:
//
//   word(key, v), a hash of 32 bits (Wellons' triple32, keyed in between):
//     x = v + key[0];  x ^= x >> 17;  x *= 0xed5ad4bb;  x ^= x >> 11;  x += key[1]
//     x *= 0xac4c1b51;  x ^= x >> 15;  x *= 0x31848bab;  x ^= x >> 14
//   E_v = -ln(1 - u), u = (word + 1/2) * 2^-32: in [2^-33, 1], so that E_v is never 0
//   the winner has the largest (w_v * 2^64) / E_v; of equal ones the lowest id
//
// E_v is computed by `exponential`, to 3 units in the last place, and by nothing else: whoever
// draws from the same weights draws the same token, whatever the processor. The steps of u shift a
// probability by 2^-33 at most, and so the whole distribution by less than vocab * 2^-33 (2e-5 for
// 152k tokens, if all of them weigh as little as that).
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/ids.h"
#include "engine/sampling/random.h"

namespace tandem::sampling {

// -ln(1 - u) for the u of `word`, > 0. Cephes' logf, on -u itself where u < 1/4, since 1 - u would
// round away what tells small ones apart.
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

// The winner. weights: [vocab], in [0, 1]; a token of weight 0 does not run. -1 if none does.
Token race(std::span<const float> weights, RaceKey key);

}  // namespace tandem::sampling
