// Counter-based random numbers: a draw is a pure function of its purpose and position.
//
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). The key is
// the request's seed; the counter is (position, choice, purpose, round). Draws do not depend on
// batching, preemption or method: AR, BiTA and PPD draw the same token at the same position.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::sampling {

enum class Purpose : uint32_t {
  kToken = 0,     // an output token; not keyed by the round
  kDraft = 1,     // a draft, independent of later draws at its position
  kAccept = 2,    // acceptance of a draft by the ratio rule
  kResidual = 3,  // the replacement of a rejected draft
};

// One block of Philox4x32 with 10 rounds; the Random123 known answers hold.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1), a multiple of 2^-53.
// choice: index of the request's choice (n > 1), from 0.
// position: of the row whose logits are read.
// round_start: position where the method's round began. Ignored for kToken, so tokens do not depend
// on the rounds of their method.
double uniform(uint64_t seed, uint32_t choice, Purpose purpose, int position, int round_start = 0);

// The key of a race: words 0 and 1 of the same block.
using RaceKey = std::array<uint32_t, 2>;
RaceKey race_key(uint64_t seed, uint32_t choice, Purpose purpose, int position,
                 int round_start = 0);

}  // namespace tandem::sampling
