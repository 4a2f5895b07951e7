// Beam search without caches, after Transformers' _beam_search (early_stopping = False).
#pragma once

#include "engine/decode/beam.h"
#include "tests/reference/rows.h"

namespace tandem::reference {

inline Tokens beam(const Model& model, const Tokens& prompt, const BeamParams& a, const Tokens& eos,
                   int max_new_tokens) {
  struct Hypothesis {
    Tokens tokens;
    double score = 0;  // open: sum(log p); finished: with the length penalty
  };
  const auto better = [](const Hypothesis& x, const Hypothesis& y) { return x.score > y.score; };
  const auto width = static_cast<size_t>(a.width);
  const size_t keep = std::max<size_t>(2, 1 + eos.size()) * width;
  std::vector<Hypothesis> open(1), finished;
  for (int length = 1; length <= max_new_tokens; ++length) {
    std::vector<Hypothesis> all, next;
    for (const Hypothesis& h : open) {
      const Row row(model, joined(prompt, h.tokens));
      for (Token t = 0; t < model.config.vocab_size; ++t) {
        all.push_back({joined(h.tokens, {t}), h.score + row.log_softmax(t)});
      }
    }
    std::sort(all.begin(), all.end(), better);
    all.resize(std::min(all.size(), keep));
    const double norm = std::pow(length, a.length_penalty);
    for (size_t i = 0; i < all.size(); ++i) {
      const bool eos_hit = std::find(eos.begin(), eos.end(), all[i].tokens.back()) != eos.end();
      if (eos_hit || length == max_new_tokens) {
        if (i < width) finished.push_back({all[i].tokens, all[i].score / norm});
      } else if (next.size() < width) {
        next.push_back(all[i]);
      }
    }
    std::sort(finished.begin(), finished.end(), better);
    finished.resize(std::min(finished.size(), width));
    open = next;
    if (open.empty()) break;
    if (finished.size() == width && open[0].score / norm <= finished.back().score) break;
  }
  Tokens best = finished.at(0).tokens;
  if (std::find(eos.begin(), eos.end(), best.back()) != eos.end()) best.pop_back();
  return best;
}

}  // namespace tandem::reference
