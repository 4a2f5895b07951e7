#include "engine/decode/mask_rows.h"

#include <utility>

namespace tandem {

LaidTree lay(BitaTree tree, const Candidates& candidates, Pass* pass) {
  LaidTree laid;
  laid.rows.push_back(static_cast<Row>(pass->add.size()) - 1);
  for (const BitaTree::Node& node : tree.nodes) {
    laid.token.push_back(
        candidates[static_cast<size_t>(node.depth) - 1][static_cast<size_t>(node.rank)]);
    const Row above = laid.rows[LaidTree::index(node.parent)];
    laid.rows.push_back(pass->add.add(token_in(laid.token.back()), above));
  }
  for (int node = BitaTree::kRoot; node < tree.size(); ++node) {
    laid.group.push_back(static_cast<int>(laid.masks.size()));
    Row above = laid.rows[LaidTree::index(node)];
    for (int i = 0; i < tree.masks(node); ++i) {
      In mask;
      mask.kind = In::kMask;
      mask.id = i;
      laid.masks.push_back(above = pass->add.add(mask, above));
    }
  }
  laid.tree = std::move(tree);
  return laid;
}

Read predicted_by(Gen g, RowList masks, int k) {
  Read read;
  read.rows = std::move(masks);
  read.warp = g.warp();
  read.warp.temperature = 0;
  read.top = k;
  return read;
}

}  // namespace tandem
