#include "engine/sampling/random.h"

#include "engine/base/mutation.h"

namespace tandem::sampling {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplier0 * counter[0];
    const uint64_t b = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

RaceKey race_key(uint64_t seed, uint32_t choice, Purpose purpose, int position, int round_start) {
  const bool of_round = purpose != Purpose::kToken || mutated(Mutation::kDrawByRound);
  const uint32_t round = of_round ? static_cast<uint32_t>(round_start) : 0;
  const auto word =
      philox4x32({static_cast<uint32_t>(position), choice, static_cast<uint32_t>(purpose), round},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {word[0], word[1]};
}

double uniform(uint64_t seed, uint32_t choice, Purpose purpose, int position, int round_start) {
  const RaceKey word = race_key(seed, choice, purpose, position, round_start);
  const uint64_t bits = (static_cast<uint64_t>(word[1]) << 32) | word[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace tandem::sampling
