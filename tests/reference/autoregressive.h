// Autoregressive decoding without caches, batches or engine: the reference for all that equals it.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/pass/constraint.h"
#include "engine/sampling/race.h"
#include "engine/sampling/random.h"
#include "engine/sampling/warp.h"
#include "tests/reference/rows.h"

namespace tandem::reference {

// What a request's processors make of the logits after `tokens`, said as plainly as it can be.
inline void process(const Processors& p, const std::vector<Token>& tokens,
                    std::vector<float>& logits) {
  for (const auto& [token, bias] : p.bias) logits[static_cast<size_t>(token)] += bias;
  std::vector<int> all(logits.size()), output(logits.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    ++all[static_cast<size_t>(tokens[i])];
    if (static_cast<int>(i) >= p.prompt_tokens) ++output[static_cast<size_t>(tokens[i])];
  }
  for (size_t v = 0; v < logits.size(); ++v) {
    float& x = logits[v];
    if (all[v] > 0) x = x < 0 ? x * p.repetition_penalty : x / p.repetition_penalty;
    if (output[v] > 0) {
      x -= p.frequency_penalty * static_cast<float>(output[v]) + p.presence_penalty;
    }
  }
  if (static_cast<int>(tokens.size()) - p.prompt_tokens < p.min_new_tokens) {
    for (const Token t : p.ends) logits[static_cast<size_t>(t)] = -INFINITY;
  }
  if (!p.constraint) return;
  const auto answer = std::span(tokens).subspan(static_cast<size_t>(p.prompt_tokens));
  const auto legal = p.constraint->after(answer);
  bool left = false;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!legal->has(static_cast<Token>(v))) logits[v] = -INFINITY;
    left |= logits[v] > -INFINITY;
  }
  if (!left) logits[static_cast<size_t>(p.constraint->ends()[0])] = 0;  // a dead end
}

// The token that follows `tokens`.
inline Token next_token(const Model& model, const std::vector<Token>& tokens, const Warp& warp) {
  std::vector<float> logits = model.logits_after(tokens);
  if (warp.processors) process(*warp.processors, tokens, logits);
  if (warp.greedy()) {
    return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  sampling::Scratch scratch;
  sampling::warp(warp, logits, sampling::scan(logits), scratch);
  const int position = static_cast<int>(tokens.size()) - 1;
  return race(scratch.weight,
              sampling::race_key(warp.seed, warp.choice, sampling::Purpose::kToken, position));
}

// Ends before a token of `eos` and after max_new_tokens. source: what an encoder reads.
inline std::vector<Token> autoregressive(const FakeModelConfig& config, std::vector<Token> tokens,
                                         const Warp& warp, const std::vector<Token>& eos,
                                         int max_new_tokens,
                                         const std::vector<Token>& source = {}) {
  const Model model(config, 0, source);
  std::vector<Token> out;
  while (static_cast<int>(out.size()) < max_new_tokens) {
    const Token t = next_token(model, tokens, warp);
    if (std::find(eos.begin(), eos.end(), t) != eos.end()) break;
    tokens.push_back(t);
    out.push_back(t);
  }
  return out;
}

}  // namespace tandem::reference
