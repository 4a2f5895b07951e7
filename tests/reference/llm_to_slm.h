// LLM-to-SLM without caches, batches or engine, written from docs/architecture.md, Algorithms.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/reference/autoregressive.h"

namespace tandem::reference {

struct Fusion {
  AdapterId adapter{0};
  int at = 0;  // layers of the large model
  bool replace = false;
  bool distinct_tokenizer = false;  // the prompt's ids are the large model's
  bool encoded = false;             // the hidden rows are an encoder's
  Tokens read;  // the text in the large model's tokens; empty: the small model's tokens
  std::vector<int> alignment;  // by conditioned row: the row of `read`; empty: the same index
};

// The inputs of the rows of `tokens`.
inline std::vector<uint64_t> fused_inputs(const Fusion& f, const Tokens& tokens) {
  std::vector<uint64_t> large, hidden, inputs;
  for (const Token t : f.read.empty() ? tokens : f.read) {
    large.push_back(fake::token_input(t));
    hidden.push_back(fake::chain(large));
  }
  if (f.encoded) {
    for (uint64_t& h : hidden) h = fake::mix(fake::chain(large), h);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t row = f.alignment.empty() ? i : Row::index(f.alignment[i]);
    inputs.push_back(fake::embed_input(f.adapter, hidden[row], f.at, f.replace ? -1 : tokens[i]));
  }
  return inputs;
}

// The small model after its conditioned rows: those of `prompt`, or, if it has an encoder, of
// `source`.
inline Model conditioned(const FakeModelConfig& small, const Fusion& f, const Tokens& prompt,
                         const Tokens& source) {
  Model model(small);
  const std::vector<uint64_t> inputs = fused_inputs(f, source.empty() ? prompt : source);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const uint64_t seen = fake::seen(inputs[i], static_cast<int>(i));
    model.memory += source.empty() ? seen : fake::mix(3, seen);
  }
  if (source.empty()) model.first = static_cast<int>(inputs.size());
  return model;
}

inline Tokens llm_to_slm(const FakeModelConfig& small, const Fusion& f, const Tokens& prompt,
                         const Warp& warp, const Tokens& eos, int max_new_tokens,
                         const Tokens& source = {}) {
  const Model model = conditioned(small, f, prompt, source);
  Tokens behind = source.empty() ? Tokens() : prompt;  // tokens that are not conditioned
  const bool counted = !f.distinct_tokenizer || !source.empty();
  Tokens seen = counted ? prompt : Tokens(), answer;  // tokens that processors count
  const auto ends = [&](Token t) { return std::ranges::find(eos, t) != eos.end(); };
  while (static_cast<int>(answer.size()) < max_new_tokens) {
    std::vector<float> logits = model.logits_after(behind);
    if (warp.processors) {
      Processors p = *warp.processors;
      p.prompt_tokens = static_cast<int>(seen.size() - answer.size());
      process(p, seen, logits);
    }
    auto best = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
    if (!warp.greedy()) {
      sampling::Scratch scratch;
      sampling::warp(warp, logits, sampling::scan(logits), scratch);
      const int position = model.first + static_cast<int>(behind.size()) - 1;
      best = race(scratch.weight,
                  sampling::race_key(warp.seed, warp.choice, sampling::Purpose::kToken, position));
    }
    if (ends(best)) break;
    answer.push_back(best);
    seen.push_back(best);
    behind.push_back(best);
  }
  return answer;
}

}  // namespace tandem::reference
