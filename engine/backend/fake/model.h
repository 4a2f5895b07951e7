// A model in closed form: the answers of the fake backend, which tests compute as well.
//
// The logits of a row are a hash of the (input, position) pairs that it sees and of its layers
// done. So a wrong token, position, mask, window, slot or layer count changes the answer, and tests
// know every answer without running a pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/config.h"
#include "engine/base/ids.h"

namespace tandem::fake {

inline constexpr size_t kStateWidth = 8;  // of hidden states

// The model with a LoRA adapter, which answers as a model of another seed; invalid: without.
FakeModelConfig with_lora(const FakeModelConfig& model, LoraId lora);

// SplitMix64's finalizer.
inline uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
// A good 64-bit hash of the pair.
inline uint64_t mix(uint64_t a, uint64_t b) { return scramble(scramble(a) ^ b); }

// The contribution of a visible row to the answers of rows that see it. Contributions are summed.
inline uint64_t seen(uint64_t input, int position) {
  return mix(input, static_cast<uint64_t>(position));
}
// Hashes of inputs: tokens, and mask embeddings of an adapter.
uint64_t token_input(Token token);
uint64_t mask_input(AdapterId adapter, int mask);
// The hash of a hidden row, from the inputs up to it (see chain()) and its layers, after an adapter
// (invalid: none). Added to the embedding of `token`; -1: replaces it.
uint64_t embed_input(AdapterId adapter, uint64_t chain, int layers, Token token);
// The hash of inputs in order.
uint64_t chain(std::span<const uint64_t> inputs);

// logits: [vocab] fp32 out. `sum`: of seen() over the visible rows. `layers`: done by the row.
void logits(const FakeModelConfig& model, uint64_t sum, int layers, std::span<float> logits);

// Adjusts the logits of a mask row: with probability mask_accuracy, decided by `sum`, the token of
// greedy decoding becomes the most probable one. `plain`: the sum of seen() over its visible rows
// without masks. The last of these, at `position`, is the parent of the chain of masks that ends
// with m_{mask + 1}. Windows are not moved.
void predict(const FakeModelConfig& model, uint64_t sum, uint64_t plain, int position, int mask,
             int layers, std::span<float> logits);

// The state after the last norm of a row, from the inputs up to it (see chain()).
std::vector<double> state(const FakeModelConfig& model, uint64_t chain);
// logits() of the last of a sequence of inputs.
std::vector<float> logits_after_inputs(const FakeModelConfig& model,
                                       std::span<const uint64_t> inputs, int layers);
// logits() after `tokens`, as autoregressive decoding reads them. window 0: none.
std::vector<float> logits_after(const FakeModelConfig& model, std::span<const Token> tokens,
                                int layers, int window = 0);
// The token that the script of the model writes after `tokens` (FakeModelConfig::answers); -1: they
// have no script.
Token scripted(const FakeModelConfig& model, std::span<const Token> tokens);
// The greedy continuation of `prompt` by `n` tokens.
std::vector<Token> greedy(const FakeModelConfig& model, std::vector<Token> prompt, int n,
                          int window = 0);

}  // namespace tandem::fake
