#include "engine/decode/pacing/draft_length.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem {
namespace {

// Rounds in which the first `kept` drafts are accepted.
void run(DraftLength& length, int kept, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    length.observe(length.gamma(), std::min(length.gamma(), kept));
  }
}

TEST(DraftLength, FixedIsAlwaysTheSame) {
  DraftLength length(Pace::kFixed, 4);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(length.gamma(), 4);
    length.observe(4, i % 2);
  }
}

TEST(DraftLength, AdaptiveFollowsTheAcceptLength) {
  DraftLength length(Pace::kAdaptive, 8);
  EXPECT_EQ(length.gamma(), 8);
  run(length, 2, 40);
  EXPECT_EQ(length.gamma(), 3);
  run(length, 0, 40);
  EXPECT_EQ(length.gamma(), 1) << "never fewer";
  for (int i = 0; i < 20; ++i) length.observe(0, 0);
  EXPECT_EQ(length.gamma(), 1) << "a round that was cut short says nothing";
  run(length, 8, 40);
  EXPECT_EQ(length.gamma(), 8);
}

}  // namespace
}  // namespace tandem
