#include "engine/decode/bita.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/draft_ids.h"
#include "engine/decode/mask_tokens.h"
#include "engine/decode/pacing/tree_size.h"

namespace tandem {
namespace {

// The masks' predictions: the candidates for each depth of the next tree, best first.
struct Predicted {
  Candidates tokens;
  int mask = 0;  // the first depth's are those of m_{mask + 1}

  // The rank of `token` among the candidates behind a node of this depth; -1: none.
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
int child_of(const TreeRows& rows, int node, Token drawn) {
  for (int i = 0; i < rows.tree.size(); ++i) {
    if (rows.tree.at(i).parent != node) continue;
    if (rows.token[static_cast<size_t>(i)] == drawn) return i;
  }
  return BitaTree::kRoot;
}

bool has_children(const BitaTree& tree, int node) {
  for (const BitaTree::Node& n : tree.nodes) {
    if (n.parent == node) return true;
  }
  return false;
}

// The predictions behind `node`: of its own masks, or the remaining ones of the nearest group
// above.
Predicted predict(const TreeRows& rows, int node, std::span<const Out> masks) {
  int ahead = 0;
  int from = node;
  while (from != BitaTree::kRoot && rows.tree.masks(from) == 0) {
    from = rows.tree.at(from).parent;
    ++ahead;
  }
  Predicted predicted;
  predicted.mask = ahead;
  for (int i = ahead; i < rows.tree.masks(from); ++i) {
    std::vector<Token>& depth = predicted.tokens.emplace_back();
    const auto row = static_cast<size_t>(rows.group[TreeRows::index(from)] + i);
    for (const Ranked& candidate : masks[row].top) depth.push_back(candidate.token);
  }
  return predicted;
}

// The accepted path: from the root as long as a child is the token that its parent draws.
struct Walk {
  std::vector<Emitted> out;
  std::vector<Row> path;       // rows of the pass to retain
  int node = BitaTree::kRoot;  // the last one
};

Walk verify(Gen g, const TreeRows& rows, const Predicted& predicted, const Readout& r,
            TreeSize* size) {
  Walk w;
  for (Row row = 0; row <= rows.nodes[0]; ++row) w.path.push_back(row);
  bool best = true;  // all accepted nodes have rank 0
  for (;;) {
    const Out& drawn = r.row[TreeRows::index(w.node)];
    const int depth = rows.tree.depth(w.node);
    if (best && depth < predicted.depths()) {
      size->observe_token(predicted.mask + depth, predicted.rank_of(depth, drawn.token));
    }
    const int child = child_of(rows, w.node, drawn.token);
    if (child == BitaTree::kRoot) {
      const bool rejected = has_children(rows.tree, w.node);
      w.out.push_back(g.emitted(drawn, {Source::kLarge, Source::kLarge, rejected}));
      return w;
    }
    best = best && rows.tree.at(child).rank == 0;
    w.out.push_back(
        g.emitted(drawn, {Source::kMask, Source::kLarge, false, predicted.mask + depth}));
    w.path.push_back(rows.nodes[TreeRows::index(w.node = child)]);
  }
}

}  // namespace

Task<void> bita(Gen g, BitaParams a) {
  const Stage L = g.stage(Role::kLarge);
  TreeSize size(a.tree, a.num_masks.value_or(kBitaMasks), a.num_candidates, a.pace, a.stats);
  Warp warp = g.warp();  // of the masks
  warp.vocab = draft_ids(warp, a.draft_vocabulary.value_or(0));
  Predicted predicted;
  for (;;) {
    BitaTree tree = size.tree(g.load(L)).clipped(predicted.counts(), g.remaining());
    co_await g.round({{L, g.missing(L) + tree.rows()}});
    Pass p = g.catch_up(L);
    const TreeRows rows = add_tree(std::move(tree), predicted.tokens, &p);
    p.reading(g.draw(rows.nodes));
    if (!rows.masks.empty()) p.reading(read_masks(rows.masks, a.num_candidates, warp));
    Readout r = co_await g.submit(std::move(p));

    Walk w = verify(g, rows, predicted, r, &size);
    predicted = predict(rows, w.node, std::span<const Out>(r.row).subspan(rows.nodes.size()));
    size.observe_round(rows.tree, static_cast<int>(w.out.size()));
    g.retain(L.cache, w.path);
    const int64_t accepted = g.stats().small_tokens;
    const bool ended = g.emit(std::move(w.out));
    g.count_verification(rows.tree.size(), g.stats().small_tokens - accepted);
    if (ended) co_return;
  }
}

}  // namespace tandem
