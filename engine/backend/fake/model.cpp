#include "engine/backend/fake/model.h"

#include <algorithm>
#include <string>

namespace tandem::fake {
namespace {

constexpr int kFirstPrintable = 32;
constexpr int kEndPrintable = 127;

}  // namespace

FakeModelConfig with_lora(const FakeModelConfig& model, LoraId lora) {
  FakeModelConfig adapted = model;
  if (lora.valid()) adapted.seed = mix(mix(6, model.seed), lora.index());
  return adapted;
}

uint64_t token_input(Token token) { return mix(1, static_cast<uint64_t>(token)); }

uint64_t mask_input(AdapterId adapter, int mask) {
  return mix(mix(2, adapter.index()), static_cast<uint64_t>(mask));
}

uint64_t embed_input(AdapterId adapter, uint64_t chain, int layers, Token token) {
  const uint64_t row = mix(chain, static_cast<uint64_t>(layers));
  const auto through = static_cast<uint64_t>(adapter.value);
  return mix(mix(mix(4, through), row), static_cast<uint64_t>(token));
}

uint64_t chain(std::span<const uint64_t> inputs) {
  uint64_t sum = 0;
  for (const uint64_t input : inputs) sum = mix(sum, input);
  return sum;
}

void logits(const FakeModelConfig& model, uint64_t sum, int layers, std::span<float> out) {
  const uint64_t h = mix(mix(sum, model.seed), static_cast<uint64_t>(layers));
  for (size_t v = 0; v < out.size(); ++v) {
    // Uniform in [0, 8), so that confidence varies.
    out[v] = static_cast<float>(scramble(h ^ (v * 0xd6e8feb86659fd93ULL)) >> 40) * 0x1p-21F;
  }
  if (out.size() < 257) return;
  // A byte vocabulary: mostly printable text, sometimes the end token.
  for (size_t v = 0; v < out.size(); ++v) {
    const bool readable = v >= kFirstPrintable && v < kEndPrintable;
    if (!readable && v != 256) out[v] -= 16;
  }
}

std::vector<double> state(const FakeModelConfig& model, uint64_t chain) {
  std::vector<double> all(kStateWidth);
  for (size_t i = 0; i < all.size(); ++i) {
    // Uniform in [-1, 1).
    const uint64_t hash = mix(mix(chain, model.seed), i);
    all[i] = static_cast<double>(static_cast<int64_t>(hash)) * 0x1p-63;
  }
  return all;
}

void predict(const FakeModelConfig& model, uint64_t sum, uint64_t plain, int position, int mask,
             int layers, std::span<float> out) {
  constexpr double kScale = 0x1p-64;
  if (static_cast<double>(mix(5, sum)) * kScale >= model.mask_accuracy) return;
  // Greedy decoding from there: the next token, then one more for each mask up to this one.
  std::vector<float> next(out.size());
  Token best = 0;
  for (int i = 0; i <= mask + 1; ++i) {
    logits(model, plain, layers, next);
    best = static_cast<Token>(std::ranges::max_element(next) - next.begin());
    plain += seen(token_input(best), position + 1 + i);
  }
  out[static_cast<size_t>(best)] = 1 + *std::ranges::max_element(out);
}

std::vector<float> logits_after_inputs(const FakeModelConfig& model,
                                       std::span<const uint64_t> inputs, int layers) {
  uint64_t sum = 0;
  for (size_t i = 0; i < inputs.size(); ++i) sum += seen(inputs[i], static_cast<int>(i));
  std::vector<float> out(static_cast<size_t>(model.vocab_size));
  logits(model, sum, layers, out);
  return out;
}

std::vector<float> logits_after(const FakeModelConfig& model, std::span<const Token> tokens,
                                int layers, int window) {
  const int n = static_cast<int>(tokens.size());
  const int first = window > 0 ? std::max(0, n - window) : 0;
  uint64_t sum = 0;
  for (int i = first; i < n; ++i) sum += seen(token_input(tokens[static_cast<size_t>(i)]), i);
  std::vector<float> out(static_cast<size_t>(model.vocab_size));
  logits(model, sum, layers, out);
  return out;
}

Token scripted(const FakeModelConfig& model, std::span<const Token> tokens) {
  if (model.answers.empty() || model.answer_after.empty()) return -1;
  constexpr Token kEnd = 256;
  std::string text;
  for (const Token t : tokens) text.push_back(static_cast<char>(std::min<Token>(t, 255)));
  size_t turns = 0, begin = 0;
  for (size_t at = 0; (at = text.find(model.answer_after, at)) != std::string::npos; ++turns) {
    at = begin = at + model.answer_after.size();
  }
  if (turns == 0 || turns > model.answers.size()) return -1;
  const std::string& answer = model.answers[turns - 1];
  const size_t written = text.size() - begin;
  return written < answer.size() ? static_cast<unsigned char>(answer[written]) : kEnd;
}

std::vector<Token> greedy(const FakeModelConfig& model, std::vector<Token> prompt, int n,
                          int window) {
  std::vector<Token> out;
  for (int i = 0; i < n; ++i) {
    const std::vector<float> l = logits_after(model, prompt, model.layers, window);
    const auto best = std::max_element(l.begin(), l.end()) - l.begin();
    out.push_back(static_cast<Token>(best));
    prompt.push_back(out.back());
  }
  return out;
}

}  // namespace tandem::fake
