#include "engine/decode/draft_ids.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

namespace tandem {
namespace {

TEST(DraftIds, LeaveMoreThanARequestBans) {
  constexpr float kBanned = -std::numeric_limits<float>::infinity();
  Warp warp;
  EXPECT_EQ(draft_ids(warp, 0), 0) << "all";
  EXPECT_EQ(draft_ids(warp, 7), 7);
  Processors processors;
  processors.bias = {{0, kBanned}, {1, kBanned}, {2, kBanned}};
  processors.ends = {3};
  warp.processors = std::make_shared<const Processors>(processors);
  EXPECT_EQ(draft_ids(warp, 4), 5) << "4 is none of those";
  EXPECT_EQ(draft_ids(warp, 9), 9);
  warp.vocab = 8;  // what the models have in common
  EXPECT_EQ(draft_ids(warp, 9), 8);
  EXPECT_EQ(draft_ids(warp, 0), 8);
}

}  // namespace
}  // namespace tandem
