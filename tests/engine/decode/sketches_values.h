// A throw-away method that hands hidden rows on to another model: what methods may rely on, before
// they move in.
#pragma once

#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/decode/gen.h"

namespace tandem::test {

// LLM-to-SLM, with a decoder as the large model: it runs the prompt once and leaves the rows
// after layer `at`; the small model gets them beside the prompt's tokens, and decodes alone.
inline Task<void> embedded(Gen g, int at) {
  const Stage L = g.stage(Role::kLarge), S = g.stage(Role::kSmall);
  const auto n = static_cast<int>(g.seq().size());
  for (;;) {
    // After an eviction the small model has nothing, and gets it as it did before.
    bool again = true;
    while (again) {
      const bool empty = g.rows(S) == 0;
      Needs needs{{S, g.missing(S), 0}};
      if (empty) needs.push_back({L, g.missing(L), 0, n});
      co_await g.round(std::move(needs));
      again = !empty && g.rows(S) == 0;
    }
    Pass p;
    if (g.rows(S) > 0) {
      p = g.catch_up(S);
    } else {
      Pass prompt;
      prompt.stage = L;
      Read left;
      left.at = at;
      left.hidden = true;
      for (int i = 0; i < n; ++i) {
        left.rows.push_back(prompt.add.chain(token_in(g.seq()[static_cast<size_t>(i)])));
      }
      prompt.reading(std::move(left));
      const Ticket rows = g.submit(std::move(prompt));
      p.stage = S;
      p.adapter = AdapterId(0);
      for (size_t i = 0; i < g.seq().size(); ++i) {
        const Token t = g.seq()[i];
        const bool fused = i < static_cast<size_t>(n);
        p.add.chain(fused ? rows.embedded(static_cast<int>(i), t, false) : token_in(t));
      }
    }
    p.reading(g.draw(last_rows(1, p.add.size())));
    Readout r = co_await g.submit(std::move(p));
    if (g.emit(g.emitted(r.row[0]))) co_return;
  }
}

// What it answers, greedy.
inline std::vector<Token> embedded_answer(const FakeModelConfig& small, int at,
                                          const std::vector<Token>& prompt,
                                          const std::vector<Token>& eos, int max_new_tokens) {
  std::vector<uint64_t> tokens, inputs;
  for (const Token t : prompt) {
    tokens.push_back(fake::token_input(t));
    inputs.push_back(fake::embed_input(AdapterId(0), fake::chain(tokens), at, t));
  }
  std::vector<Token> answer;
  while (static_cast<int>(answer.size()) < max_new_tokens) {
    const std::vector<float> l = fake::logits_after_inputs(small, inputs, small.layers);
    const auto best = static_cast<Token>(std::ranges::max_element(l) - l.begin());
    if (std::ranges::find(eos, best) != eos.end()) break;
    answer.push_back(best);
    inputs.push_back(fake::token_input(best));
  }
  return answer;
}

}  // namespace tandem::test
