// LLM-to-SLM without caches, batches or engine, written from METHODS section 5.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/reference/autoregressive.h"

namespace tandem::reference {

struct Fusion {
  AdapterId adapter{0};
  int at = 0;  // layers of the large model
  bool replace = false;
  bool foreign = false;  // the prompt's ids are the large model's own
};

inline Tokens llm_to_slm(const FakeModelConfig& small, const Fusion& f, const Tokens& prompt,
                         const Warp& warp, const Tokens& eos, int max_new_tokens) {
  std::vector<uint64_t> large, inputs;  // what the two models are fed
  for (const Token t : prompt) {
    large.push_back(fake::token_input(t));
    const uint64_t h = fake::chain(large);
    inputs.push_back(fake::embed_input(f.adapter, h, f.at, f.replace ? -1 : t));
  }
  Tokens seen = f.foreign ? Tokens() : prompt, answer;  // tokens that processors count
  const auto ends = [&](Token t) { return std::ranges::find(eos, t) != eos.end(); };
  while (static_cast<int>(answer.size()) < max_new_tokens) {
    std::vector<float> logits = fake::logits_after_inputs(small, inputs, small.layers);
    if (warp.processors) {
      Processors p = *warp.processors;
      p.prompt_tokens = static_cast<int>(seen.size() - answer.size());
      process(p, seen, logits);
    }
    auto best = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
    if (!warp.greedy()) {
      sampling::Scratch scratch;
      sampling::warp(warp, logits, sampling::scan(logits), scratch);
      const int position = static_cast<int>(inputs.size()) - 1;
      best = race(scratch.weight,
                  sampling::race_key(warp.seed, warp.choice, sampling::Purpose::kToken, position));
    }
    if (ends(best)) break;
    answer.push_back(best);
    seen.push_back(best);
    inputs.push_back(fake::token_input(best));
  }
  return answer;
}

}  // namespace tandem::reference
