#include "engine/decode/bita_tree.h"

#include <algorithm>

namespace tandem {
namespace {

bool is_chain(BitaTreeKind kind) {
  return kind == BitaTreeKind::kChain || kind == BitaTreeKind::kStraightforward;
}

// The number of children of a node (or the root) at `depth` with this rank.
int children(BitaTreeKind kind, int depth, int rank, int candidates) {
  if (kind == BitaTreeKind::kFull) return candidates;
  if (rank > 0) return 0;
  if (is_chain(kind)) return 1;
  return kind == BitaTreeKind::kTriangle ? std::max(0, candidates - depth) : candidates;
}

int masks_of(BitaTreeKind kind, int rank, int masks) {
  if (kind == BitaTreeKind::kStraightforward) return 0;
  return kind == BitaTreeKind::kSpine && rank > 0 ? 0 : masks;
}

}  // namespace

int BitaTree::mask_rows() const {
  int n = root_masks;
  for (const Node& node : nodes) n += node.masks;
  return n;
}

BitaTree BitaTree::clipped(const std::vector<int>& candidates, int remaining) const {
  const int deepest = std::min(static_cast<int>(candidates.size()), remaining - 1);
  const auto useful = [&](int masks, int depth) {
    return std::clamp(remaining - 2 - depth, 0, masks);
  };
  BitaTree out;
  out.root_masks = useful(root_masks, 0);
  std::vector<int> number(nodes.size(), size());  // in `out`; size(): dropped
  for (int i = 0; i < size(); ++i) {
    Node node = at(i);
    if (node.depth > deepest || node.rank >= candidates[static_cast<size_t>(node.depth) - 1]) {
      continue;
    }
    if (node.parent != kRoot) {
      node.parent = number[static_cast<size_t>(node.parent)];
      if (node.parent == size()) continue;
    }
    node.masks = useful(node.masks, node.depth);
    number[static_cast<size_t>(i)] = out.size();
    out.nodes.push_back(node);
  }
  return out;
}

int bita_tree_rows(BitaTreeKind kind, int masks, int candidates) {
  constexpr int64_t kMost = 1 << 30;
  // All nodes of a depth with rank > 0 have as many children.
  int64_t best = 1, others = 0, rows = masks;
  for (int depth = 0; depth < masks; ++depth) {
    const int64_t of_best = children(kind, depth, 0, candidates);
    const int64_t of_others = children(kind, depth, 1, candidates);
    const int64_t more = (of_best > 0 ? best : 0) + (of_others > 0 ? others : 0);
    others =
        best * std::max<int64_t>(0, of_best - 1) + others * std::max<int64_t>(0, of_others - 1);
    best = more;
    rows += best * (1 + masks_of(kind, 0, masks)) + others * (1 + masks_of(kind, 1, masks));
    if (rows > kMost) return static_cast<int>(kMost);
  }
  return static_cast<int>(rows);
}

BitaTree make_bita_tree(BitaTreeKind kind, int masks, int candidates) {
  BitaTree tree;
  tree.root_masks = masks;
  std::vector<int> level = {BitaTree::kRoot};
  for (int depth = 0; depth < masks; ++depth) {
    std::vector<int> next;
    for (const int parent : level) {
      const int rank = parent == BitaTree::kRoot ? 0 : tree.at(parent).rank;
      for (int r = 0; r < children(kind, depth, rank, candidates); ++r) {
        next.push_back(tree.size());
        tree.nodes.push_back({parent, depth + 1, r, masks_of(kind, r, masks)});
      }
    }
    level = std::move(next);
  }
  return tree;
}

}  // namespace tandem
