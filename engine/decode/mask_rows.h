// Masks in a pass: the rows of a token tree, and the masks that hang on them.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/decode/bita_tree.h"
#include "engine/decode/gen.h"

namespace tandem {

// Tokens that may come next, by depth, of each depth the best first.
using Candidates = std::vector<std::vector<Token>>;

// A tree in a pass: the rows of the root and the nodes, and the masks that hang on each.
struct LaidTree {
  BitaTree tree;
  std::vector<Token> token;  // by node
  RowList rows;              // [0]: the root; [1 + i]: node i
  RowList masks;             // group after group, in the order of `rows`
  std::vector<int> group;    // where a row's begins in `masks`

  static size_t index(int node) { return static_cast<size_t>(node + 1); }  // in `rows`
};

// Adds the nodes behind the root, which is the last row of `pass`, then everybody's masks.
// REQUIRES: candidates for every node.
LaidTree lay(BitaTree tree, const Candidates& candidates, Pass* pass);

// A mask's k best tokens under the request's own processors, whatever is drawn elsewhere.
Read predicted_by(Gen g, RowList masks, int k);

}  // namespace tandem
