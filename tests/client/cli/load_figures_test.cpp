#include "client/cli/load_figures.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using namespace std::chrono_literals;

TEST(Percentile, IsLinearBetweenNeighbours) {
  const std::vector<double> values = {10, 20, 30, 40};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 10);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 40);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 25);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 37);  // as numpy.percentile has it
  EXPECT_DOUBLE_EQ(percentile({5}, 99), 5);
}

TEST(Spread, SaysWhatItIsOf) {
  const Spread s = spread_of({3, 1, 2});
  EXPECT_EQ(s.count, 3u);
  EXPECT_DOUBLE_EQ(s.mean, 2);
  EXPECT_DOUBLE_EQ(s.p50, 2);
  EXPECT_DOUBLE_EQ(s.most, 3);
  ASSERT_EQ(s.curve.size(), 101u);
  EXPECT_DOUBLE_EQ(s.curve[0], 1);
  EXPECT_DOUBLE_EQ(s.curve[100], 3);
  EXPECT_EQ(spread_of({}).count, 0u);
  EXPECT_TRUE(spread_of({}).curve.empty());
}

// Due at 1 s, its first token at 1.5 s, then one after 0.1 s and three at once after 0.6 s.
Sample sample() {
  Sample s;
  s.due = 1s;
  s.messages = {{1500ms, 1}, {1600ms, 1}, {2200ms, 3}};
  s.end = 2300ms;
  s.prompt_tokens = 7;
  return s;
}

TEST(Sample, TimesCountFromWhenItWasDue) {
  EXPECT_EQ(sample().tokens(), 5);
  EXPECT_EQ(sample().first(), Duration(500ms));
  EXPECT_FALSE(Sample().first().has_value());
}

TEST(Sample, TokensOfOneMessageShareItsTime) {
  const std::vector<double> gaps = sample().between();
  ASSERT_EQ(gaps.size(), 4u);
  EXPECT_NEAR(gaps[0], 0.1, 1e-9);
  for (size_t i = 1; i < 4; ++i) EXPECT_NEAR(gaps[i], 0.2, 1e-9);
}

TEST(Level, CountsRequestsTokensAndErrors) {
  Sample failed;
  failed.due = 2s;
  failed.end = 3s;
  failed.messages = {{2500ms, 1}};  // and then it broke
  failed.error = "UNAVAILABLE";
  const Level level = level_of("rate", 2, {sample(), failed}, {});
  EXPECT_DOUBLE_EQ(level.seconds, 2);
  EXPECT_EQ(level.sent, 2u);
  EXPECT_EQ(level.done, 1u);
  EXPECT_EQ(level.errors.at("UNAVAILABLE"), 1u);
  EXPECT_DOUBLE_EQ(level.requests_per_second, 0.5);
  EXPECT_DOUBLE_EQ(level.tokens_per_second, 3);
  EXPECT_DOUBLE_EQ(level.prompt_tokens_per_second, 3.5);
  EXPECT_DOUBLE_EQ(level.first.p50, 0.5);
  EXPECT_DOUBLE_EQ(level.whole.p50, 1.3);
  EXPECT_EQ(level.between.count, 4u);
  EXPECT_DOUBLE_EQ(level.within, 0.5) << "no limits: what ends well";
}

TEST(Level, GoodputIsWhatKeepsAllLimits) {
  const auto within = [](const Limits& limits) {
    return level_of("rate", 1, {sample()}, limits).within;
  };
  EXPECT_DOUBLE_EQ(within({.first_seconds = 0.5}), 1);
  EXPECT_DOUBLE_EQ(within({.first_seconds = 0.49}), 0);
  EXPECT_DOUBLE_EQ(within({.between_seconds = 0.18}), 1) << "the mean is 0.175";
  EXPECT_DOUBLE_EQ(within({.between_seconds = 0.17}), 0);
  EXPECT_DOUBLE_EQ(within({.whole_seconds = 1.2}), 0);
  EXPECT_DOUBLE_EQ(within({.first_seconds = 1, .whole_seconds = 1.2}), 0);
  Sample silent;
  silent.end = 1s;
  EXPECT_DOUBLE_EQ(level_of("rate", 1, {silent}, {.first_seconds = 9}).within, 0);
  EXPECT_DOUBLE_EQ(level_of("rate", 1, {sample()}, {.first_seconds = 1}).goodput, 1 / 1.3);
}

TEST(Level, OfNothing) {
  const Level level = level_of("concurrency", 1, {}, {});
  EXPECT_EQ(level.sent, 0u);
  EXPECT_EQ(level.requests_per_second, 0);
  EXPECT_FALSE(dump(to_json(level)).empty());
}

TEST(Level, AsJsonAndAsATable) {
  const Level level = level_of("rate", 2, {sample()}, {.first_seconds = 1});
  const Json json = to_json(level);
  EXPECT_EQ(json["load"], "rate");
  EXPECT_EQ(json["offered"], 2);
  EXPECT_DOUBLE_EQ(json["time_to_first_token_seconds"]["p99"], 0.5);
  EXPECT_EQ(json["time_to_first_token_seconds"]["curve"].size(), 101u);
  const std::string table = load_table({level}, {.first_seconds = 1});
  EXPECT_NE(table.find("rate 2"), std::string::npos);
  EXPECT_NE(table.find("500.0 / 500.0 / 500.0"), std::string::npos);
  EXPECT_NE(table.find("(100 %)"), std::string::npos);
  EXPECT_EQ(load_table({level}, {}).find("goodput"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli
