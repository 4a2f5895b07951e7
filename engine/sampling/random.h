// Counter-based random numbers: a draw is a pure function of what it is for.
//
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). The key is
// the request's seed; the counter is (position, choice, purpose, round). Nothing depends on
// batching, preemption, or the method: AR, BiTA and PPD draw the same token at the same position.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::sampling {

enum class Purpose : uint32_t {
  kToken = 0,     // a token from its own distribution; not keyed by the round
  kDraft = 1,     // a token that another draw at its position must not depend on
  kAccept = 2,    // whether a draft stays, by the ratio rule
  kResidual = 3,  // the token in place of one that does not
};

// One block of Philox4x32 with 10 rounds; the Random123 known answers hold.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1), a multiple of 2^-53.
// choice: number of the request's choice (n > 1), from 0.
// position: of the row whose logits are drawn from or judged.
// round_start: position where the method's round began; ignored for kToken, so that a token never
// depends on how its method was cut into rounds.
double uniform(uint64_t seed, uint32_t choice, Purpose purpose, int position, int round_start = 0);

// The key of a race: words 0 and 1 of the same block.
using RaceKey = std::array<uint32_t, 2>;
RaceKey race_key(uint64_t seed, uint32_t choice, Purpose purpose, int position,
                 int round_start = 0);

}  // namespace tandem::sampling
