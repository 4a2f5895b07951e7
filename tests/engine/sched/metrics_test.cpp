// Series that come and go.
#include "engine/sched/metrics.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace tandem {
namespace {

std::vector<std::string> names(const Metrics& metrics) {
  std::vector<std::string> names;
  for (const Series& s : metrics.series) names.push_back(s.model + " " + s.method);
  return names;
}

TEST(SeriesSet, ASeriesExistsWhileItIsInUse) {
  Metrics metrics;
  std::shared_ptr<Series> a = metrics.series.open("a", "ngram");
  const std::shared_ptr<Series> b = metrics.series.open("b", "ngram");
  a->prompt_tokens.add(3);
  std::shared_ptr<Series> same = metrics.series.open("a", "ngram");
  EXPECT_EQ(same, a);
  EXPECT_EQ(names(metrics), (std::vector<std::string>{"a ngram", "b ngram"}));
  a = nullptr;
  EXPECT_EQ(metrics.series.front().prompt_tokens.value(), 3);
  same = nullptr;
  EXPECT_EQ(names(metrics), std::vector<std::string>{"b ngram"});
  const std::shared_ptr<Series> again = metrics.series.open("a", "ngram");
  EXPECT_EQ(again->prompt_tokens.value(), 0);
  EXPECT_EQ(metrics.series.size(), 2U);
}

// A scrape may end after the series have gone.
TEST(SeriesSet, ALoopKeepsWhatItVisits) {
  Metrics metrics;
  std::shared_ptr<Series> a = metrics.series.open("a", "ngram");
  auto at = metrics.series.begin();
  a = nullptr;
  EXPECT_EQ((*at).model, "a");
  EXPECT_TRUE(++at == metrics.series.end());
  EXPECT_TRUE(metrics.series.begin() != metrics.series.end());  // `at` still keeps it
}

TEST(SeriesSet, OneWithoutNamesStays) {
  Metrics metrics;
  metrics.models.emplace_back().page_rows = 16;
  EXPECT_EQ(metrics.models[0].page_rows, 16);
  EXPECT_EQ(metrics.models.size(), 1U);
}

}  // namespace
}  // namespace tandem
