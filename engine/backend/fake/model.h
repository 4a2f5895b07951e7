// A model in closed form: what the fake backend answers, and what tests expect of it.
//
// The answer for a row is a hash of the (input, position) pairs that it sees and of the number of
// layers it has gone through. So a wrong token, position, mask, window, slot or layer count changes
// the answer, and tests know every answer without running anything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/config.h"
#include "engine/base/ids.h"

namespace tandem::fake {

// SplitMix64's finalizer.
inline uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
// A good 64-bit hash of the pair.
inline uint64_t mix(uint64_t a, uint64_t b) { return scramble(scramble(a) ^ b); }

// What one visible row adds to the answers of those that see it; sums commute.
inline uint64_t seen(uint64_t input, int position) {
  return mix(input, static_cast<uint64_t>(position));
}
// Identity of inputs: tokens, and an adapter's masks.
uint64_t token_input(Token token);
uint64_t mask_input(AdapterId adapter, int mask);
// A hidden row, by the inputs up to it (see chain()) and its layers, through an adapter (invalid:
// none); added to the embedding of `token`, or in its place (-1).
uint64_t embed_input(AdapterId adapter, uint64_t chain, int layers, Token token);
// Hash of inputs in their order.
uint64_t chain(std::span<const uint64_t> inputs);

// logits: [vocab] fp32 out. `sum`: of seen() over the visible rows; `layers`: done by the row.
void logits(const FakeModelConfig& model, uint64_t sum, int layers, std::span<float> logits);

// Of a mask row: `plain`, seen() of the rows that it sees but for masks, the last of which lies
// at `position` and is the one that mask m_{mask + 1} hangs on. With config's mask_accuracy,
// decided by `sum`, the token that greedy decoding comes to there is made the likeliest. Windows do
// not move with it.
void foresee(const FakeModelConfig& model, uint64_t sum, uint64_t plain, int position, int mask,
             int layers, std::span<float> logits);

// logits() of the last row of a sequence of inputs.
std::vector<float> logits_after_inputs(const FakeModelConfig& model,
                                       std::span<const uint64_t> inputs, int layers);
// The same for the last row of a plain sequence: what AR reads after `tokens`. window 0: none.
std::vector<float> logits_after(const FakeModelConfig& model, std::span<const Token> tokens,
                                int layers, int window = 0);
// Greedy continuation of `prompt` by `n` tokens.
std::vector<Token> greedy(const FakeModelConfig& model, std::vector<Token> prompt, int n,
                          int window = 0);

}  // namespace tandem::fake
