// Token trees with mask tokens in a pass.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/gen.h"

namespace tandem {

// Candidate tokens by depth, each depth best first.
using Candidates = std::vector<std::vector<Token>>;

// The rows of a tree in a pass.
struct TreeRows {
  BitaTree tree;
  std::vector<Token> token;  // by node
  RowList nodes;             // [0]: the root; [1 + i]: node i
  RowList masks;             // group after group, in the order of `nodes`
  std::vector<int> group;    // begin of a node's group in `masks`, in the order of `nodes`

  static size_t index(int node) { return static_cast<size_t>(node + 1); }  // in `nodes`
};

// Adds the nodes behind the root, which is the last row of `pass`, and then all mask groups.
// REQUIRES: a candidate for each node.
TreeRows add_tree(BitaTree tree, const Candidates& candidates, Pass* pass);

// Reads the k best tokens of each mask, under the warp's processors and ids, greedily.
Read read_masks(RowList masks, int k, const Warp& warp);

}  // namespace tandem
