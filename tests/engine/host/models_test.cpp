#include "engine/host/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::HasSubstr;

PoolRequest request(const char* name, int64_t page_bytes, int max_positions, int64_t wanted = 0) {
  PoolRequest r;
  r.name = name;
  r.page_bytes = page_bytes;
  r.max_positions = max_positions;
  r.wanted_pages = wanted;
  return r;
}

TEST(DividePages, EqualRowsForModelsOfDifferentSize) {
  const auto pages =
      divide_pages({request("large", 600, 1 << 20), request("small", 400, 1 << 20)}, 100'000, 64);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(*pages, (std::vector<int64_t>{100, 100}));
}

TEST(DividePages, NoMoreThanAllSequencesNeed) {
  const auto pages = divide_pages({request("m", 10, 100)}, 1'000'000, 3);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ((*pages)[0], 7 * 3);
}

TEST(DividePages, WhatTheDeploymentNamesComesFirst) {
  const auto pages =
      divide_pages({request("named", 100, 1 << 20, 30), request("rest", 100, 1 << 20)}, 5'000, 64);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(*pages, (std::vector<int64_t>{30, 20}));
}

TEST(DividePages, RefusesABudgetWithoutRoomForAPage) {
  for (const int64_t wanted : {0, 10}) {
    const auto pages = divide_pages({request("m", 1000, 100, wanted)}, 999, 3);
    EXPECT_EQ(pages.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(pages.status().message(), HasSubstr("memory_bytes: 999; model m needs 1000"));
  }
}

}  // namespace
}  // namespace tandem
