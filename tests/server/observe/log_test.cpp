#include "server/observe/log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace tandem {
namespace {

TEST(Log, OneLineAsText) {
  EXPECT_EQ(log_line(LogFormat::kText, "e",
                     {{"a", 1}, {"b", "x y"}, {"c", "l\nevent=forged"}, {"d", ""}, {"f", 0.5}}),
            "event=e a=1 b=\"x y\" c=\"l\\nevent=forged\" d=\"\" f=0.5");
}

TEST(Log, OneLineAsJson) {
  EXPECT_EQ(log_line(LogFormat::kJson, "e",
                     {{"a", 1}, {"b", "x"}, {"c", "\"\n\u2028"}, {"d", std::nan("")}}),
            R"("event":"e","a":1,"b":"x","c":"\"\n\u2028","d":"nan")");
}

// However long: a model's name of 4 MB once made a line of 4 MB.
TEST(Log, ValuesAreCut) {
  const std::string line = log_line(LogFormat::kText, "e", {{"model", std::string(5000, 'x')}});
  EXPECT_EQ(line, "event=e model=\"" + std::string(LogField::kMaxValue, 'x') + "...\"");
  EXPECT_EQ(log_line(LogFormat::kText, "e", {{"m", "a\u20ac", 2}}), "event=e m=\"a...\"");
}

}  // namespace
}  // namespace tandem
