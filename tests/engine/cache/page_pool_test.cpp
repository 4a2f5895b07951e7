#include "engine/cache/page_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace tandem {
namespace {

TEST(PagePool, GivesEachPageOnce) {
  PagePool pool(5);
  std::set<PageId> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.take());
  EXPECT_EQ(pages.size(), 5U);
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.used(), 5);
  EXPECT_EQ(pool.total(), 5);
}

TEST(PagePool, APageIsFreeWhenItsLastOwnerGoes) {
  PagePool pool(2);
  const PageId page = pool.take();
  pool.share(page);
  pool.share(page);
  EXPECT_EQ(pool.owners(page), 3);
  EXPECT_FALSE(pool.give_back(page));
  EXPECT_FALSE(pool.give_back(page));
  EXPECT_EQ(pool.free(), 1);
  EXPECT_TRUE(pool.give_back(page));
  EXPECT_EQ(pool.free(), 2);
}

TEST(PagePoolDeathTest, BooksThatDoNotAddUp) {
  PagePool pool(1);
  EXPECT_DEATH(pool.give_back(PageId(0)), "broken invariant");
  EXPECT_DEATH(pool.share(PageId(0)), "broken invariant");
  const PageId page = pool.take();
  EXPECT_DEATH(pool.take(), "broken invariant");
  pool.give_back(page);
  EXPECT_DEATH(pool.give_back(page), "broken invariant");
}

}  // namespace
}  // namespace tandem
