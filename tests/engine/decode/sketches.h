// Methods for tests of the contract: the real ones with what they counted, and a throw-away one for
// token trees, which no method has moved in with yet.
#pragma once

#include <limits>
#include <vector>

#include "engine/decode/bild.h"
#include "engine/decode/gen.h"
#include "engine/decode/speculative.h"

namespace tandem::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

struct BildArgs {
  int run = 4;
  float fallback = 0.1F;
  float rollback = 0.69F;  // < ln 2: EXACT when greedy
};

struct SketchStats {
  int rollbacks = 0;
  int fallbacks = 0;
  int accepted = 0;
};

inline Task<void> bild(Gen g, BildArgs a, SketchStats* stats) {
  BildParams params;
  params.max_small_run = a.run;
  params.fallback_threshold = a.fallback;
  params.rollback_threshold = a.rollback;
  co_await tandem::bild(g, params);
  stats->rollbacks += static_cast<int>(g.stats().own[BildFigures::kRollbacks]);
  stats->fallbacks += static_cast<int>(g.stats().own[BildFigures::kFallbacks]);
}

inline Task<void> speculative(Gen g, int gamma, SketchStats* stats) {
  SpeculativeParams params;
  params.draft_tokens = gamma;
  co_await tandem::speculative(g, params);
  for (size_t n = 0; n < g.stats().accept_lengths.size(); ++n) {
    stats->accepted += static_cast<int>(n) * static_cast<int>(g.stats().accept_lengths[n]);
  }
}

// METHODS section 3, `efficient` tree of M depths and k ranks; every plain row has a mask group.
inline Task<void> tree_walk(Gen g, int M, int k, SketchStats* stats) {
  const Stage C = g.stage(Role::kLarge);
  std::vector<std::vector<Token>> c;  // c[i]: top k of m_i
  for (;;) {
    const int nodes = static_cast<int>(c.size()) * k;
    co_await g.round({{C, g.missing(C) + nodes + (1 + nodes) * M}});
    Pass p = g.catch_up(C);
    const Row root = static_cast<Row>(p.add.size()) - 1;
    RowList plain = {root}, masks;
    std::vector<std::pair<Row, Token>> node = {{-1, -1}};  // by index into plain: parent and token
    Row spine = root;
    for (const auto& ranks : c) {
      const Row above = spine;
      for (size_t i = 0; i < ranks.size(); ++i) {
        plain.push_back(p.add.add(token_in(ranks[i]), above));
        node.emplace_back(above, ranks[i]);
        if (i == 0) spine = plain.back();
      }
    }
    for (const Row row : plain) {
      Row above = row;
      for (int i = 0; i < M; ++i) {
        In in;
        in.kind = In::kMask;
        in.id = i;
        masks.push_back(above = p.add.add(in, above));
      }
    }
    p.adapter = AdapterId(0);
    p.reading(g.draw(plain));
    Read ranked;
    ranked.rows = masks;
    ranked.top = k;
    p.reading(std::move(ranked));
    Readout r = co_await g.submit(std::move(p));
    std::vector<Row> path;
    for (Row row = 0; row <= root; ++row) path.push_back(row);
    std::vector<Emitted> out;
    for (size_t cur = 0;;) {
      const Token x = r.row[cur].token;
      out.push_back({x, {Source::kMask, Source::kLarge}});
      size_t child = 1;
      while (child < plain.size() && node[child] != std::pair(plain[cur], x)) ++child;
      if (child == plain.size()) {
        c.assign(static_cast<size_t>(M), {});
        for (size_t i = 0; i < c.size(); ++i) {
          const Out& mask = r.row[plain.size() + cur * static_cast<size_t>(M) + i];
          for (const Ranked& t : mask.top) c[i].push_back(t.token);
        }
        break;
      }
      ++stats->accepted;
      path.push_back(plain[cur = child]);
    }
    g.keep(C.cache, path);
    if (g.emit(std::move(out))) co_return;
  }
}

}  // namespace tandem::test
