#include "engine/base/suggest.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Suggest, CountsWhatIsWrong) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("top-k", "top-k"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("seed", "sed"), 1);
  EXPECT_EQ(edit_distance("sede", "seed"), 1) << "two that are swapped";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggest, FindsTheNameThatIsMeant) {
  const std::vector<std::string> names = {"temperature", "top-k",          "top-p",
                                          "seed",        "max-new-tokens", "model"};
  EXPECT_EQ(nearest("temprature", names), "temperature");
  EXPECT_EQ(nearest("max_new_tokens", names), "max-new-tokens");
  EXPECT_EQ(nearest("temp", names), "temperature") << "the only name with this prefix";
  EXPECT_EQ(nearest("sede", names), "seed");
  EXPECT_EQ(nearest("modle", names), "model");
}

TEST(Suggest, IsSilentWhereNothingIsNear) {
  const std::vector<std::string> names = {"temperature", "seed", "n"};
  EXPECT_EQ(nearest("banana", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("x", names), "") << "one letter of one is all of it";
  EXPECT_EQ(nearest(std::string(10000, 'a'), names), "");
  EXPECT_EQ(nearest("seed", {}), "");
}

}  // namespace
}  // namespace tandem
