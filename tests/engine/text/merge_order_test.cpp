#include "engine/text/merge_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace tandem {
namespace {

// BPE over a, b, c and d, with each token merged from two earlier ones; ids in that order or in
// `order`.
std::shared_ptr<const Tokenizer> merged(size_t tokens, bool shuffled) {
  std::mt19937 rng(3);
  std::vector<std::string> made = {"a", "b", "c", "d"};
  nlohmann::json merges = nlohmann::json::array();
  while (made.size() < tokens) {
    const std::string left = made[rng() % made.size()], right = made[rng() % made.size()];
    if (left.size() + right.size() > 12) continue;
    if (std::find(made.begin(), made.end(), left + right) != made.end()) continue;
    merges.push_back(left + " " + right);
    made.push_back(left + right);
  }
  std::vector<size_t> id(made.size());
  for (size_t i = 0; i < id.size(); ++i) id[i] = i;
  if (shuffled) std::shuffle(id.begin(), id.end(), rng);
  nlohmann::json vocab;
  for (size_t i = 0; i < made.size(); ++i) vocab[made[i]] = id[i];
  const nlohmann::json file = {{"version", "1.0"},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  const auto tokenizer = Tokenizer::parse("merged", file.dump(), "{}");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

TEST(MergeOrder, IsDetected) {
  const auto in_order = merged(600, false), shuffled = merged(600, true);
  ASSERT_NE(in_order, nullptr);
  ASSERT_NE(shuffled, nullptr);
  EXPECT_TRUE(merges_in_order(*in_order));
  EXPECT_FALSE(merges_in_order(*shuffled));
}

TEST(MergeOrder, NeedsMerges) { EXPECT_FALSE(merges_in_order(*Tokenizer::bytes())); }

}  // namespace
}  // namespace tandem
