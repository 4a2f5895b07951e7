#include "client/cli/load_report.h"

#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using namespace std::chrono_literals;

TEST(Ticks, AreRoundAndReachTheLargest) {
  EXPECT_EQ(ticks(10), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(ticks(100), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(ticks(0), (std::vector<double>{0, 1}));
  for (const double most : {0.0007, 0.013, 1.0, 7.3, 99.0, 12345.0}) {
    const std::vector<double> t = ticks(most);
    EXPECT_GE(t.back(), most * (1 - 1e-9)) << most;
    EXPECT_LE(t.size(), 7u) << most;
    EXPECT_LT(t[t.size() - 2], most) << most;
  }
}

TEST(Svg, DrawsItsLinesWithinItsFrame) {
  const std::string drawn = svg({"t", "x", "y <&>", {{"a<b", {{0, 0}, {10, 5}}}, {"c", {}}}});
  EXPECT_NE(drawn.find("points=\"60.0,256.0 544.0,28.0 \""), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("a&lt;b"), std::string::npos);
  EXPECT_NE(drawn.find("y &lt;&amp;&gt;"), std::string::npos);
  EXPECT_EQ(drawn.find("nan"), std::string::npos);
  EXPECT_EQ(svg({"t", "x", "y", {{"a", {}}}}), "") << "nothing to draw";
  EXPECT_EQ(svg({"t", "x", "y", {{"a", {{0, 0}}}}}).find("nan"), std::string::npos);
}

Level level(double offered) {
  Sample sample;
  sample.messages = {{100ms, 1}, {200ms, 1}};
  sample.end = 300ms;
  return level_of("rate", offered, {sample}, {});
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(ReportPage, StandsAlone) {
  const std::string page = report_page({{"model", "<script>"}}, {level(1), level(2)}, {});
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  for (const char* from_elsewhere : {"http:", "https:", "src=", "href=", "@import", "url("}) {
    EXPECT_EQ(page.find(from_elsewhere), std::string::npos) << from_elsewhere;
  }
  EXPECT_EQ(count(page, "<svg"), count(page, "</svg>"));
  EXPECT_EQ(count(page, "<figure>"), 7u);
  EXPECT_EQ(count(page, "<td>rate 2</td>"), 1u);
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

TEST(ReportPage, OfOneLevelHasNoCurvesOverTheLoad) {
  const std::string page = report_page({}, {level(1)}, {});
  EXPECT_EQ(count(page, "<figure>"), 3u);
  EXPECT_EQ(page.find("goodput"), std::string::npos);
  EXPECT_NE(report_page({}, {level(1)}, {.first_seconds = 1}).find("goodput"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli
