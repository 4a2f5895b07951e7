#include "engine/decode/mask_tokens.h"

#include <utility>

namespace tandem {

TreeRows add_tree(BitaTree tree, const Candidates& candidates, Pass* pass) {
  TreeRows rows;
  rows.nodes.push_back(static_cast<Row>(pass->add.size()) - 1);
  for (const BitaTree::Node& node : tree.nodes) {
    rows.token.push_back(
        candidates[static_cast<size_t>(node.depth) - 1][static_cast<size_t>(node.rank)]);
    const Row parent = rows.nodes[TreeRows::index(node.parent)];
    rows.nodes.push_back(pass->add.add(token_in(rows.token.back()), parent));
  }
  for (int node = BitaTree::kRoot; node < tree.size(); ++node) {
    rows.group.push_back(static_cast<int>(rows.masks.size()));
    Row parent = rows.nodes[TreeRows::index(node)];
    for (int i = 0; i < tree.masks(node); ++i) {
      In mask;
      mask.kind = In::kMask;
      mask.id = i;
      rows.masks.push_back(parent = pass->add.add(mask, parent));
    }
  }
  rows.tree = std::move(tree);
  return rows;
}

Read read_masks(RowList masks, int k, const Warp& warp) {
  Read read;
  read.rows = std::move(masks);
  read.warp = warp;
  read.warp.temperature = 0;
  read.top = k;
  return read;
}

}  // namespace tandem
