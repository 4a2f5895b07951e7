// BiTA's token trees as data (arXiv 2401.12522, sections 3.2 and 4.3.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

enum class BitaTreeKind : uint8_t {
  kEfficient,        // M k nodes; only the best candidate of each depth has children
  kSpine,            // the same nodes, with masks only on the best candidates
  kTriangle,         // k - d + 1 nodes at depth d
  kFull,             // each node has k children
  kChain,            // the best candidate of each depth
  kStraightforward,  // a chain with masks on the root only
};

// The candidate tokens of a round and their masks. Nodes are numbered from 0 in the order of their
// rows: by depth, so parents precede children, and by rank within a parent.
struct BitaTree {
  static constexpr int kRoot = -1;  // the last token of the text

  struct Node {
    int parent = kRoot;
    int depth = 1;  // of the root: 0
    int rank = 0;   // among the candidates of its depth; 0: best
    int masks = 0;  // m_1 .. m_masks follow it
  };
  std::vector<Node> nodes;
  int root_masks = 0;

  int size() const { return static_cast<int>(nodes.size()); }
  int depth(int node) const { return node == kRoot ? 0 : at(node).depth; }
  int masks(int node) const { return node == kRoot ? root_masks : at(node).masks; }
  const Node& at(int node) const { return nodes[static_cast<size_t>(node)]; }
  int mask_rows() const;
  int rows() const { return size() + mask_rows(); }  // without the root's

  // The useful part if there are `candidates` by depth and `remaining` tokens to generate. The root
  // makes one token and each accepted node another: no node is deeper than remaining - 1. Mask m_i
  // at depth d predicts a token i + 1 behind its node's: none has d + i > remaining - 2.
  BitaTree clipped(const std::vector<int>& candidates, int remaining) const;
};

// Rows that a tree of this kind has, at most 2^30.
int bita_tree_rows(BitaTreeKind kind, int masks, int candidates);
// REQUIRES: masks and candidates >= 1.
BitaTree make_bita_tree(BitaTreeKind kind, int masks, int candidates);

}  // namespace tandem
