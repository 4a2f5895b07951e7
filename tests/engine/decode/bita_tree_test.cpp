#include "engine/decode/bita_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/reference/bita.h"

namespace tandem::test {
namespace {

using Kind = BitaTreeKind;
using reference::RankPath;

constexpr Kind kTreeKinds[] = {Kind::kEfficient, Kind::kSpine, Kind::kTriangle,
                               Kind::kFull,      Kind::kChain, Kind::kStraightforward};

RankPath path_of(const BitaTree& tree, int node) {
  RankPath path;
  for (; node != BitaTree::kRoot; node = tree.at(node).parent) {
    path.insert(path.begin(), tree.at(node).rank);
  }
  return path;
}

// Every path of these many depths and ranks.
std::vector<RankPath> all_paths(int depths, int ranks) {
  std::vector<RankPath> all = {{}};
  for (size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(all[i].size()) == depths) continue;
    for (int r = 0; r < ranks; ++r) {
      RankPath path = all[i];
      path.push_back(r);
      all.push_back(path);
    }
  }
  all.erase(all.begin());
  return all;
}

TEST(BitaTree, HasTheNodesAndMasksOfItsKind) {
  for (const Kind kind : kTreeKinds) {
    for (int masks = 1; masks <= 4; ++masks) {
      for (int k = 1; k <= 4; ++k) {
        const BitaTree tree = make_bita_tree(kind, masks, k);
        EXPECT_EQ(tree.root_masks, masks);
        std::set<RankPath> nodes;
        int last = 0;
        for (int i = 0; i < tree.size(); ++i) {
          const BitaTree::Node& node = tree.at(i);
          EXPECT_LT(node.parent, i) << "a row sees rows before it only";
          EXPECT_EQ(node.depth, tree.depth(node.parent) + 1);
          EXPECT_GE(node.depth, last) << "a depth after the other";
          last = node.depth;
          const RankPath path = path_of(tree, i);
          EXPECT_EQ(node.masks, reference::has_masks(kind, path) ? masks : 0);
          EXPECT_TRUE(nodes.insert(path).second);
        }
        for (const RankPath& path : all_paths(masks, k)) {
          EXPECT_EQ(nodes.contains(path), reference::is_node(kind, k, path));
        }
        EXPECT_EQ(tree.rows(), bita_tree_rows(kind, masks, k)) << masks << " masks, k = " << k;
      }
    }
  }
}

TEST(BitaTree, SizesOfThePaper) {
  EXPECT_EQ(make_bita_tree(Kind::kEfficient, 3, 5).size(), 15) << "M k nodes";
  EXPECT_EQ(make_bita_tree(Kind::kEfficient, 3, 5).rows() + 1, 64) << "and M masks on each";
  EXPECT_EQ(make_bita_tree(Kind::kTriangle, 3, 5).size(), 5 + 4 + 3);
  EXPECT_EQ(make_bita_tree(Kind::kTriangle, 4, 2).size(), 2 + 1) << "no depth without candidates";
  EXPECT_EQ(make_bita_tree(Kind::kFull, 3, 2).size(), 2 + 4 + 8);
  EXPECT_EQ(make_bita_tree(Kind::kChain, 3, 5).size(), 3);
  EXPECT_EQ(make_bita_tree(Kind::kStraightforward, 3, 5).rows(), 3 + 3);
  EXPECT_EQ(make_bita_tree(Kind::kSpine, 3, 2).rows(), 6 + 4 * 3);
  EXPECT_EQ(bita_tree_rows(Kind::kFull, 16, 16), 1 << 30) << "counted without being made";
}

TEST(BitaTree, IsClippedToWhatMayCome) {
  for (const Kind kind : kTreeKinds) {
    const BitaTree whole = make_bita_tree(kind, 3, 3);
    for (int remaining = 1; remaining <= 7; ++remaining) {
      for (const std::vector<int>& candidates :
           {std::vector<int>{}, {3}, {2, 3}, {3, 3, 3}, {1, 1, 1}}) {
        const BitaTree tree = whole.clipped(candidates, remaining);
        std::set<RankPath> kept;
        for (int i = 0; i < tree.size(); ++i) {
          const RankPath path = path_of(tree, i);
          kept.insert(path);
          EXPECT_EQ(tree.depth(i), static_cast<int>(path.size()));
          EXPECT_LE(tree.depth(i), remaining - 1);
          const int most = reference::has_masks(kind, path) ? 3 : 0;
          EXPECT_EQ(tree.masks(i), std::clamp(remaining - 2 - tree.depth(i), 0, most));
        }
        EXPECT_EQ(tree.root_masks, std::clamp(remaining - 2, 0, 3));
        for (int i = 0; i < whole.size(); ++i) {
          const RankPath path = path_of(whole, i);
          bool there = path.size() <= candidates.size() && whole.depth(i) <= remaining - 1;
          for (size_t d = 0; there && d < path.size(); ++d) there = path[d] < candidates[d];
          EXPECT_EQ(kept.contains(path), there);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::test
