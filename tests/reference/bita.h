// BiTA without caches (docs/architecture.md, Algorithms): every row is computed from the tokens
// that it sees.
#pragma once

#include <numeric>

#include "engine/base/outcome.h"
#include "engine/decode/bita.h"
#include "tests/reference/rows.h"

namespace tandem::reference {

// Ranks of the candidates that lead from the root to a node, from 0.
using RankPath = std::vector<int>;

// Which paths are nodes, as docs/decoding_methods.md lists them.
inline bool is_node(BitaTreeKind kind, int candidates, const RankPath& path) {
  const bool best = std::all_of(path.begin(), path.end() - 1, [](int rank) { return rank == 0; });
  const int depth = static_cast<int>(path.size()), rank = path.back();
  switch (kind) {
    case BitaTreeKind::kEfficient:
    case BitaTreeKind::kSpine:
      return best && rank < candidates;
    case BitaTreeKind::kTriangle:
      return best && rank < candidates - depth + 1;
    case BitaTreeKind::kFull:
      return rank < candidates;
    case BitaTreeKind::kChain:
    case BitaTreeKind::kStraightforward:
      return best && rank == 0;
  }
  return false;
}

inline bool has_masks(BitaTreeKind kind, const RankPath& path) {
  if (path.empty()) return true;
  if (kind == BitaTreeKind::kStraightforward) return false;
  return kind != BitaTreeKind::kSpine || path.back() == 0;
}

// Logits of m_{i + 1}, hung on the last of `text`.
inline std::vector<float> mask_logits(const Model& m, const Tokens& text, int i,
                                      AdapterId adapter) {
  uint64_t plain = 0;
  int position = 0;
  for (const Token t : text) plain += fake::seen(fake::token_input(t), position++);
  uint64_t sum = plain;
  for (int j = 0; j <= i; ++j) sum += fake::seen(fake::mask_input(adapter, j), position++);
  std::vector<float> logits(static_cast<size_t>(m.config.vocab_size));
  fake::logits(m.config, sum, m.layers, logits);
  fake::predict(m.config, sum, plain, static_cast<int>(text.size()) - 1, i, m.layers, logits);
  return logits;
}

// Its best `k` tokens with ids below `ids`, 0: of all.
inline Tokens mask_candidates(const Model& m, const Tokens& text, int i, int k, AdapterId adapter,
                              int ids) {
  const std::vector<float> logits = mask_logits(m, text, i, adapter);
  Tokens all(ids > 0 ? std::min(logits.size(), Row::index(ids)) : logits.size());
  std::iota(all.begin(), all.end(), 0);
  std::sort(all.begin(), all.end(), [&](Token a, Token b) {
    const float x = logits[Row::index(a)], y = logits[Row::index(b)];
    return x != y ? x > y : a < b;
  });
  all.resize(std::min(all.size(), Row::index(k)));
  return all;
}

struct Foretold {
  Tokens tokens;
  MethodStats stats;
  std::vector<int> masks;  // by token: the mask that proposed it, or -1
};

// Nodes below `path`, as deep as there are candidates and no deeper than `deepest`.
inline int count_nodes(const BitaParams& a, const std::vector<Tokens>& candidates, int deepest,
                       const RankPath& path) {
  const size_t depth = path.size();
  if (depth >= candidates.size() || static_cast<int>(depth) >= deepest) return 0;
  int n = 0;
  for (int rank = 0; rank < static_cast<int>(candidates[depth].size()); ++rank) {
    RankPath child = path;
    child.push_back(rank);
    if (is_node(a.tree, a.num_candidates, child)) {
      n += 1 + count_nodes(a, candidates, deepest, child);
    }
  }
  return n;
}

// `biased`: a candidate stays without being drawn where its row's own draw is another of the
// candidates. Tests must notice.
inline Foretold bita(const Model& model, const Tokens& prompt, const Warp& w, const BitaParams& a,
                     AdapterId adapter, const Tokens& eos, int max_new_tokens,
                     bool biased = false) {
  Foretold result;
  Output out{prompt, eos, max_new_tokens, {}, false};
  std::vector<Tokens> candidates;  // by depth
  int spent = 0;                   // masks of the group that they come from
  while (!out.ended) {
    const int remaining = out.remaining();
    const int drafted = count_nodes(a, candidates, remaining - 1, {});
    RankPath path;
    int useful = 0;
    Tokens text = out.seq;
    for (;;) {
      Token own = Row(model, text).draw(w);
      RankPath child = path;
      const size_t depth = path.size();
      if (depth < candidates.size() && static_cast<int>(depth) < remaining - 1) {
        const Tokens& c = candidates[depth];
        const auto found = std::find(c.begin(), c.end(), own);
        if (found != c.end()) child.push_back(static_cast<int>(found - c.begin()));
        if (found != c.end() && biased) own = c[0], child.back() = 0;
      }
      const bool is_draft = child.size() > path.size() && is_node(a.tree, a.num_candidates, child);
      if (out.push(own)) {
        useful += is_draft;
        result.masks.push_back(is_draft ? spent + static_cast<int>(depth) : -1);
      }
      if (!is_draft) break;
      path = child;
      text.push_back(own);
    }
    result.stats.count_verification(drafted, useful);
    // The predictions of the nearest masks after the last row of the path.
    int ahead = 0;
    RankPath with_masks = path;
    while (!has_masks(a.tree, with_masks)) {
      with_masks.pop_back();
      ++ahead;
    }
    candidates.clear();
    spent = ahead;
    const Tokens seen(text.begin(), text.end() - ahead);
    const int last = remaining - 2 - static_cast<int>(with_masks.size());  // mask of any use
    for (int i = ahead; i < std::min(*a.num_masks, last); ++i) {
      candidates.push_back(mask_candidates(model, seen, i, a.num_candidates, adapter,
                                           a.draft_vocabulary.value_or(0)));
    }
  }
  result.tokens = out.tokens;
  return result;
}

}  // namespace tandem::reference
