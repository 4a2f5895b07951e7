#include "engine/base/quote.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Quote, EscapesWhatCouldForgeALine) {
  EXPECT_EQ(quote_value("a\nb\"c"), "\"a\\nb\\\"c\"");
  EXPECT_EQ(quote_value("é"), "\"é\"");
}

TEST(Quote, CutsBetweenCharacters) {
  EXPECT_EQ(quote_value("aéb", 2), "\"a...\"");
  EXPECT_EQ(quote_value("aéb", 3), "\"aé...\"");
  EXPECT_EQ(quote_value("aéb", 4), "\"aéb\"");
}

}  // namespace
}  // namespace tandem
