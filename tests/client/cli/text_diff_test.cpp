#include "client/cli/text_diff.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem::cli {
namespace {

using Kind = DiffPiece::Kind;
using Words = std::vector<std::string>;

TEST(Diff, OfEqualTextsIsOnePiece) {
  EXPECT_EQ(diff({"a", "b"}, {"a", "b"}), (std::vector<DiffPiece>{{Kind::kSame, "ab"}}));
  EXPECT_TRUE(diff({}, {}).empty());
}

TEST(Diff, KeepsWhatIsCommon) {
  EXPECT_EQ(
      diff({"a", "b", "c", "d"}, {"a", "x", "c", "d"}),
      (std::vector<DiffPiece>{
          {Kind::kSame, "a"}, {Kind::kMissing, "b"}, {Kind::kAdded, "x"}, {Kind::kSame, "cd"}}));
  EXPECT_EQ(diff({"a"}, {"a", "b"}),
            (std::vector<DiffPiece>{{Kind::kSame, "a"}, {Kind::kAdded, "b"}}));
  EXPECT_EQ(diff({"a", "b"}, {}), (std::vector<DiffPiece>{{Kind::kMissing, "ab"}}));
}

// Whatever the texts are, leaving out what is missing gives the second, and what is added the
// first.
TEST(Diff, GivesBothTextsBack) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Words a, b;
    for (size_t i = 0; i < random() % 20; ++i) a.push_back(std::string(1, 'a' + random() % 3));
    for (size_t i = 0; i < random() % 20; ++i) b.push_back(std::string(1, 'a' + random() % 3));
    std::string first, second;
    for (const DiffPiece& piece : diff(a, b)) {
      if (piece.kind != Kind::kAdded) first += piece.text;
      if (piece.kind != Kind::kMissing) second += piece.text;
    }
    std::string all_a, all_b;
    for (const std::string& word : a) all_a += word;
    for (const std::string& word : b) all_b += word;
    EXPECT_EQ(first, all_a);
    EXPECT_EQ(second, all_b);
  }
}

TEST(Diff, OfVeryLongTextsIsCoarse) {
  const auto pieces = diff(Words(9000, "a"), Words(9000, "b"));
  EXPECT_EQ(pieces.size(), 2u);
}

TEST(Diff, IsShownInColoursOrWithout) {
  const std::vector<DiffPiece> pieces = {
      {Kind::kSame, "a"}, {Kind::kMissing, "b"}, {Kind::kAdded, "c"}};
  EXPECT_EQ(show(pieces, false), "a[-b-]{+c+}");
  EXPECT_EQ(show(pieces, true), "a\x1b[31;9mb\x1b[0m\x1b[32mc\x1b[0m");
}

}  // namespace
}  // namespace tandem::cli
