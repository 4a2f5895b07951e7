#include "engine/cache/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

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
  EXPECT_FALSE(pool.release(page));
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.free(), 1);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.free(), 2);
}

TEST(PagePool, APageThatOnlyTheIndexKeepsIsCached) {
  PagePool pool(3);
  const PageId page = pool.take();
  pool.add_to_index(page);
  EXPECT_EQ(pool.owners(page), 2);
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.cached(), 0);
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.cached(), 1);
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(pool.available(), 3);
  pool.share(page);  // somebody uses it again
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.cached(), 0);
  EXPECT_FALSE(pool.remove_from_index(page));
  EXPECT_EQ(pool.owners(page), 1);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.free(), 3);
}

TEST(PagePool, APinnedPageIsNotReused) {
  PagePool pool(2);
  const PageId owned = pool.take();
  pool.pin(owned);
  pool.pin(owned);
  EXPECT_EQ(pool.pinned(), 1);
  EXPECT_FALSE(pool.release(owned));
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_FALSE(pool.unpin(owned));
  EXPECT_TRUE(pool.unpin(owned));
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(pool.pinned(), 0);

  const PageId cached = pool.take();
  pool.add_to_index(cached);
  pool.release(cached);
  EXPECT_EQ(pool.cached(), 1);
  pool.pin(cached);
  EXPECT_EQ(pool.cached(), 0) << "it is not to be given up";
  EXPECT_EQ(pool.available(), 1);
  EXPECT_FALSE(pool.unpin(cached));
  EXPECT_EQ(pool.cached(), 1);
  pool.pin(cached);
  EXPECT_FALSE(pool.remove_from_index(cached));
  EXPECT_TRUE(pool.unpin(cached));
  EXPECT_EQ(pool.free(), 2);
}

TEST(PagePool, TheOldestIsTheOneCachedForLongest) {
  PagePool pool(4);
  std::vector<PageId> pages;
  for (int i = 0; i < 4; ++i) {
    pages.push_back(pool.take());
    pool.add_to_index(pages.back());
  }
  for (const int i : {2, 0, 3}) pool.release(pages[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.evicted_for(""), pages[2]);
  pool.share(pages[2]);
  EXPECT_EQ(pool.evicted_for(""), pages[0]);
  pool.release(pages[2]);  // cached again, and the youngest now
  EXPECT_TRUE(pool.remove_from_index(pages[0]));
  EXPECT_EQ(pool.evicted_for(""), pages[3]);
  EXPECT_TRUE(pool.remove_from_index(pages[3]));
  EXPECT_EQ(pool.evicted_for(""), pages[2]);
  EXPECT_EQ(pool.free() + pool.cached() + pool.used(), pool.total());
}

TEST(PagePoolDeathTest, BooksThatDoNotAddUp) {
  PagePool pool(1);
  EXPECT_DEATH(pool.release(PageId(0)), "broken invariant");
  EXPECT_DEATH(pool.share(PageId(0)), "broken invariant");
  const PageId page = pool.take();
  EXPECT_DEATH(pool.take(), "broken invariant");
  pool.add_to_index(page);
  EXPECT_DEATH(pool.add_to_index(page), "broken invariant");
  pool.release(page);
  EXPECT_DEATH(pool.release(page), "broken invariant") << "what the index owns is not ours to give";
  pool.remove_from_index(page);
  EXPECT_DEATH(pool.remove_from_index(page), "broken invariant");
  EXPECT_DEATH(pool.release(page), "broken invariant");
}

}  // namespace
}  // namespace tandem
