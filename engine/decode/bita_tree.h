// BiTA's token trees as data (arXiv 2401.12522, sections 3.2 and 4.3.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

enum class BitaTreeKind : uint8_t {
  kEfficient,  // M k nodes; only the best candidate of each depth has children
  kSpine,      // the same, but masks only where further nodes follow or may: at best candidates
  kTriangle,   // of depth d k - d + 1 nodes
  kFull,       // each node has k children
  kChain,      // the best candidate of each depth
  kStraightforward,  // a chain whose only masks hang on the root
};

// What a round verifies, and where its masks hang. Nodes are numbered from 0 in the order of their
// rows: parents before children, a depth after the other, by rank within a parent.
struct BitaTree {
  static constexpr int kRoot = -1;  // the last token that is there, in the place of a node

  struct Node {
    int parent = kRoot;
    int depth = 1;  // of the root: 0
    int rank = 0;   // among the candidates of its depth, the best is 0
    int masks = 0;  // m_1 .. m_masks hang on it
  };
  std::vector<Node> nodes;
  int root_masks = 0;

  int size() const { return static_cast<int>(nodes.size()); }
  int depth(int node) const { return node == kRoot ? 0 : at(node).depth; }
  int masks(int node) const { return node == kRoot ? root_masks : at(node).masks; }
  const Node& at(int node) const { return nodes[static_cast<size_t>(node)]; }
  int mask_rows() const;
  int rows() const { return size() + mask_rows(); }  // beside the root's

  // What of it is of use where there are `candidates` by depth, and `remaining` tokens may still
  // come. The root gives one of them, and each accepted node one more: no node deeper than
  // remaining - 1. A mask m_i at depth d foresees the token after the next root's i-th: none with
  // d + i > remaining - 2.
  BitaTree clipped(const std::vector<int>& candidates, int remaining) const;
};

// Rows that the tree of this kind would have, however many; not above 2^30.
int bita_tree_rows(BitaTreeKind kind, int masks, int candidates);
// Depths and ranks as many as masks and candidates, each at least 1.
BitaTree make_bita_tree(BitaTreeKind kind, int masks, int candidates);

}  // namespace tandem
