// Throw-away methods that use the whole contract: what methods may rely on, before they move in.
#pragma once

#include <limits>
#include <vector>

#include "engine/decode/gen.h"

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

// CONTRACT.md's, METHODS section 2. Early exit: both stages are of one cache.
inline Task<void> bild(Gen g, BildArgs a, SketchStats* stats) {
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  co_await g.round({{S, g.missing(S)}, {L, g.missing(L)}});
  if (!(S.cache == L.cache)) g.submit(g.catch_up(S));  // beside the large prefill, never awaited
  Pass prefill = g.catch_up(L);
  prefill.reading(g.draw(last_rows(1, prefill.add.size())));
  Readout first = co_await g.submit(std::move(prefill));
  std::vector<Emitted> first_token{g.emitted(first.row[0])};
  if (g.emit(std::move(first_token))) co_return;
  for (;;) {
    co_await g.round({{S, g.missing(S) + a.run}, {L, g.missing(L) + a.run}});
    std::vector<Token> y;
    while (static_cast<int>(y.size()) < a.run && !g.ends(y)) {
      Pass p = g.catch_up(S, y);
      Read read = g.draw(last_rows(1, p.add.size()));
      read.max_prob = true;
      p.reading(std::move(read));
      Readout s = co_await g.submit(std::move(p));
      if (s.row[0].max_prob < a.fallback) {
        ++stats->fallbacks;
        break;
      }
      y.push_back(s.row[0].token);
    }
    Pass p = g.catch_up(L, y);
    RowList rows = last_rows(y.size() + 1, p.add.size());
    p.reading(g.draw(rows));
    rows.pop_back();
    Read scored;
    scored.warp = g.warp();  // the likelihoods that large's own choice goes by
    scored.rows = rows;
    scored.score = y;
    if (!y.empty()) p.reading(std::move(scored));
    Readout v = co_await g.submit(std::move(p));
    size_t m = 0;
    while (m < y.size() && (v.row[y.size() + 1 + m].nll <= a.rollback || v.row[m].argmax == y[m])) {
      ++m;
    }
    stats->rollbacks += m < y.size() ? 1 : 0;
    std::vector<Emitted> out;
    for (size_t i = 0; i < m; ++i) out.push_back({y[i], {Source::kSmall, Source::kLarge}});
    out.push_back(g.emitted(v.row[m]));
    if (g.emit(std::move(out))) co_return;
    for (const Stage stage : {S, L}) {
      g.truncate(stage.cache, static_cast<int>(g.seq().size()) - 1);
    }
  }
}

// METHODS section 1: drafts chained on the device, accepted there.
inline Task<void> speculative(Gen g, int gamma, SketchStats* stats) {
  const Stage S = g.stage(Role::kSmall), L = g.stage(Role::kLarge);
  for (;;) {
    co_await g.round({{S, g.missing(S) + gamma}, {L, g.missing(L) + gamma}});
    const int start = static_cast<int>(g.seq().size());
    std::vector<Ticket> drafts;
    Pass check = g.catch_up(L);
    Read verify = g.draw({});
    verify.round_start = start;
    for (int i = 0; i < gamma; ++i) {
      Pass p;
      if (i == 0) {
        p = g.catch_up(S);
      } else {
        p.stage = S;
        p.add.chain(drafts.back().chosen(0));
      }
      Read read = g.draw(last_rows(1, p.add.size()));
      read.keep = true;
      read.round_start = start;
      p.reading(std::move(read));
      p.share = true;
      drafts.push_back(g.submit(std::move(p)));
      check.add.chain(drafts.back().chosen(0));
      if (i == 0) {
        verify.against = drafts[0].distributions();
      } else {
        verify.against.more.push_back(drafts.back().id());
      }
    }
    verify.rows = last_rows(static_cast<size_t>(gamma) + 1, check.add.size());
    check.reading(std::move(verify));
    Readout v = co_await g.submit(std::move(check));
    stats->accepted += v.accepted;
    std::vector<Emitted> out;
    for (int i = 0; i <= v.accepted; ++i) out.push_back(g.emitted(v.row[static_cast<size_t>(i)]));
    if (g.emit(std::move(out))) co_return;
    for (const Stage stage : {S, L}) {
      g.truncate(stage.cache, static_cast<int>(g.seq().size()) - 1);
    }
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
