#include "engine/decode/bita.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/bita_budget.h"
#include "engine/decode/mask_rows.h"

namespace tandem {
namespace {

// What masks foresaw: the candidates for each depth of the next tree, the best first.
struct Predicted {
  Candidates tokens;
  int mask = 0;  // the first depth's are m_{mask + 1}'s

  // Of the candidates for what follows a node of this depth, the one that is `token`; -1: none.
  int rank_of(int depth, Token token) const {
    const auto& candidates = tokens[static_cast<size_t>(depth)];
    const auto found = std::ranges::find(candidates, token);
    return found == candidates.end() ? -1 : static_cast<int>(found - candidates.begin());
  }
  int depths() const { return static_cast<int>(tokens.size()); }
  std::vector<int> counts() const {
    std::vector<int> n;
    for (const auto& depth : tokens) n.push_back(static_cast<int>(depth.size()));
    return n;
  }
};

// The child of `node` that is `drawn`, or kRoot.
int child_of(const LaidTree& laid, int node, Token drawn) {
  for (int i = 0; i < laid.tree.size(); ++i) {
    if (laid.tree.at(i).parent != node) continue;
    if (laid.token[static_cast<size_t>(i)] == drawn) return i;
  }
  return BitaTree::kRoot;
}

bool has_children(const BitaTree& tree, int node) {
  for (const BitaTree::Node& n : tree.nodes) {
    if (n.parent == node) return true;
  }
  return false;
}

// The nearest masks: of the node itself, or what lies ahead of it of those above it.
Predicted foresee(const LaidTree& laid, int node, std::span<const Out> masks) {
  int ahead = 0;
  int from = node;
  while (from != BitaTree::kRoot && laid.tree.masks(from) == 0) {
    from = laid.tree.at(from).parent;
    ++ahead;
  }
  Predicted foreseen;
  foreseen.mask = ahead;
  for (int i = ahead; i < laid.tree.masks(from); ++i) {
    std::vector<Token>& depth = foreseen.tokens.emplace_back();
    const auto row = static_cast<size_t>(laid.group[LaidTree::index(from)] + i);
    for (const Ranked& candidate : masks[row].top) depth.push_back(candidate.token);
  }
  return foreseen;
}

// Down the tree as long as what a row draws is among its children.
struct Walk {
  std::vector<Emitted> out;
  std::vector<Row> path;       // of the pass, all that stay
  int node = BitaTree::kRoot;  // the last one
};

Walk walk(Gen g, const LaidTree& laid, const Predicted& foreseen, const Readout& r,
          BitaBudget* budget) {
  Walk w;
  for (Row row = 0; row <= laid.rows[0]; ++row) w.path.push_back(row);
  bool best = true;  // candidates all the way
  for (;;) {
    const Out& drawn = r.row[LaidTree::index(w.node)];
    const int depth = laid.tree.depth(w.node);
    if (best && depth < foreseen.depths()) {
      budget->saw_token(foreseen.mask + depth, foreseen.rank_of(depth, drawn.token));
    }
    const int child = child_of(laid, w.node, drawn.token);
    if (child == BitaTree::kRoot) {
      const bool rejected = has_children(laid.tree, w.node);
      w.out.push_back(g.emitted(drawn, {Source::kLarge, Source::kLarge, rejected}));
      return w;
    }
    best = best && laid.tree.at(child).rank == 0;
    w.out.push_back(
        g.emitted(drawn, {Source::kMask, Source::kLarge, false, foreseen.mask + depth}));
    w.path.push_back(laid.rows[LaidTree::index(w.node = child)]);
  }
}

}  // namespace

Task<void> bita(Gen g, BitaParams a) {
  const Stage L = g.stage(Role::kLarge);
  BitaBudget budget(a.tree, a.num_masks, a.num_candidates, a.only_if_faster, a.lore);
  Predicted foreseen;
  for (;;) {
    BitaTree tree = budget.tree().clipped(foreseen.counts(), g.remaining());
    const double before = g.stats().share_seconds;
    co_await g.round({{L, g.missing(L) + tree.rows()}});
    Pass p = g.catch_up(L);
    const bool catches_up = p.add.size() > 1;
    const LaidTree laid = lay(std::move(tree), foreseen.tokens, &p);
    p.reading(g.draw(laid.rows));
    if (!laid.masks.empty()) p.reading(predicted_by(g, laid.masks, a.num_candidates));
    Readout r = co_await g.submit(std::move(p));

    Walk w = walk(g, laid, foreseen, r, &budget);
    foreseen = foresee(laid, w.node, std::span<const Out>(r.row).subspan(laid.rows.size()));
    budget.saw_round(laid.tree.rows(), static_cast<int>(w.out.size()),
                     g.stats().share_seconds - before, catches_up);
    g.retain(L.cache, w.path);
    const int64_t kept = g.stats().small_tokens;
    const bool ended = g.emit(std::move(w.out));
    g.stats().count_verification(laid.tree.size(), g.stats().small_tokens - kept);
    if (ended) co_return;
  }
}

}  // namespace tandem
