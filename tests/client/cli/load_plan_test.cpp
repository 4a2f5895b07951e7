#include "client/cli/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

namespace tandem::cli {
namespace {

TEST(LoadPlan, PoissonArrivalsHaveTheirRateAndTheirSpread) {
  const std::vector<Duration> at = poisson_arrivals(50, 20000, 7);
  ASSERT_EQ(at.size(), 20000u);
  EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
  EXPECT_NEAR(seconds(at.back()), 400, 400 * 0.03);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < at.size(); ++i) {
    const double gap = seconds(at[i] - at[i - 1]);
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(at.size() - 1);
  const double mean = sum / n;
  // An exponential distribution's deviation is its mean.
  EXPECT_NEAR(squares / n - mean * mean, mean * mean, 0.1 * mean * mean);
}

TEST(LoadPlan, TheSameSeedIsTheSameLoad) {
  EXPECT_EQ(poisson_arrivals(3, 100, 1), poisson_arrivals(3, 100, 1));
  EXPECT_NE(poisson_arrivals(3, 100, 1), poisson_arrivals(3, 100, 2));
  EXPECT_EQ(random_prompts(5, 8, 300, 1), random_prompts(5, 8, 300, 1));
  EXPECT_NE(random_prompts(5, 8, 300, 1), random_prompts(5, 8, 300, 2));
}

TEST(LoadPlan, InfinitelyFastIsAllAtOnce) {
  const auto at = poisson_arrivals(std::numeric_limits<double>::infinity(), 3, 1);
  EXPECT_EQ(at, std::vector<Duration>(3));
}

TEST(LoadPlan, NoTwoPromptsBeginAlike) {
  const auto prompts = random_prompts(1000, 4, 257, 3);
  std::set<std::vector<int32_t>> seen;
  for (const auto& prompt : prompts) {
    ASSERT_EQ(prompt.size(), 4u);
    for (const int32_t id : prompt) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, 257);
    }
    seen.insert({prompt.begin(), prompt.begin() + 2});
  }
  EXPECT_EQ(seen.size(), 1000u) << "two ids distinguish a thousand prompts";
}

TEST(LoadPlan, Levels) {
  EXPECT_EQ(*parse_levels("--rate", "1,0.5,8"), (std::vector<double>{1, 0.5, 8}));
  for (const char* wrong : {"", "0", "-1", "1,,2", "x", "nan", "1e9"}) {
    const auto levels = parse_levels("--rate", wrong);
    ASSERT_FALSE(levels.ok()) << wrong;
    EXPECT_EQ(levels.status().message().substr(0, 7), "--rate:");
  }
}

}  // namespace
}  // namespace tandem::cli
