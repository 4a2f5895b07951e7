#include "engine/host/models/pools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

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

TEST(DividePages, OtherBytesOfModelsAreChargedToTheBudget) {
  PoolRequest large = request("large", 600, 1 << 20);
  large.other_bytes = 50'000;
  const std::vector<PoolRequest> models{large, request("small", 400, 1 << 20)};
  const auto pages = divide_pages(models, 150'000, 64);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(*pages, (std::vector<int64_t>{100, 100}));
  for (const int64_t budget : {1'000, 50'999}) {
    EXPECT_THAT(divide_pages(models, budget, 64).status().message(),
                ::testing::HasSubstr("allowed: at least 51000 for a page of each model"));
  }
  EXPECT_TRUE(divide_pages(models, 51'000, 64).ok());
}

TEST(DividePages, WantedPagesComeFirst) {
  const auto pages =
      divide_pages({request("named", 100, 1 << 20, 30), request("rest", 100, 1 << 20)}, 5'000, 64);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(*pages, (std::vector<int64_t>{30, 20}));
}

TEST(DividePages, EqualRowsForPagesOfDifferentLength) {
  PoolRequest large = request("large", 600, 1 << 20), small = request("small", 100, 1 << 20);
  large.page_rows = 32;
  const auto pages = divide_pages({large, small}, 80'000, 64);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(*pages, (std::vector<int64_t>{100, 200}));
}

TEST(DividePages, UnusablePagesGoToTheOthers) {
  const auto pages =
      divide_pages({request("short", 100, 32), request("long", 100, 1 << 20)}, 10'000, 5);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(*pages, (std::vector<int64_t>{10, 90}));
}

TEST(DividePages, TakesNoMoreThanTheBudget) {
  for (const int64_t budget : {2000, 2001, 12'345, 999'999}) {
    const std::vector<PoolRequest> models = {request("a", 700, 4096), request("b", 300, 512),
                                             request("c", 100, 512, 4)};
    const auto pages = divide_pages(models, budget, 3);
    ASSERT_TRUE(pages.ok()) << pages.status();
    int64_t bytes = 0;
    for (size_t i = 0; i < models.size(); ++i) bytes += (*pages)[i] * models[i].page_bytes;
    EXPECT_LE(bytes, budget);
    EXPECT_GE(bytes, std::min<int64_t>(budget - 1000, (256 * 700 + 32 * 300) * 3 + 400));
  }
}

TEST(DividePages, RefusesABudgetBelowOnePage) {
  const auto none = divide_pages({request("m", 1000, 100), request("n", 500, 40)}, 1499, 3);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(none.status().message(),
            "memory_bytes: 1499; model m needs 1000 bytes for a page of 16 rows; allowed: at least "
            "1500 for a page of each model of the device, 8500 for a whole context");
  EXPECT_TRUE(divide_pages({request("m", 1000, 100), request("n", 500, 40)}, 1500, 3).ok());
}

TEST(DividePages, RefusesPagesThatTheBudgetDoesNotHold) {
  const auto pages =
      divide_pages({request("m", 100, 100, 7), request("n", 1000, 100, 10)}, 9999, 3);
  EXPECT_EQ(pages.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pages.status().message(),
            "kv_pages of model n: 10 of 1000 bytes; allowed: at most 9 with memory_bytes: 9999");
}

TEST(DeviceBudget, LaterModelsShareWhatIsLeft) {
  DeviceBudget budget;
  const std::vector<PoolRequest> one = {request("m", 1000, 100, 6)};
  ASSERT_TRUE(budget.divide("cpu:0", one, 10'000, false, 3).ok());
  budget.take(ModelId(0), 6000);
  EXPECT_EQ(budget.divide("cpu:0", one, 10'000, false, 3).status().message(),
            "device cpu:0 (other models have 6000 bytes): kv_pages of model m: 6 of 1000 bytes; "
            "allowed: at most 4 with memory_bytes: 4000");
  EXPECT_TRUE(budget.divide("cpu:0", one, 10'000, /*remaining=*/true, 3).ok());
  budget.take(ModelId(1), 9000);
  EXPECT_EQ(budget.taken(), 15'000);
  EXPECT_EQ(budget.divide("cpu:0", one, 10'000, false, 3).status().code(),
            absl::StatusCode::kResourceExhausted);
  budget.give_back(ModelId(0));
  budget.give_back(ModelId(1));
  budget.give_back(ModelId(1));
  EXPECT_TRUE(budget.divide("cpu:0", one, 10'000, false, 3).ok());
}

}  // namespace
}  // namespace tandem
