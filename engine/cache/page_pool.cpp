#include "engine/cache/page_pool.h"

#include "engine/base/check.h"

namespace tandem {

PagePool::PagePool(int64_t pages) : owners_(static_cast<size_t>(pages), 0) {
  free_.reserve(owners_.size());
  for (int64_t p = pages - 1; p >= 0; --p) free_.emplace_back(p);
}

PageId PagePool::take() {
  TANDEM_CHECK(!free_.empty());
  const PageId page = free_.back();
  free_.pop_back();
  TANDEM_CHECK(owners_[page.index()] == 0);
  owners_[page.index()] = 1;
  return page;
}

void PagePool::share(PageId page) {
  TANDEM_CHECK(owners_[page.index()] > 0);
  ++owners_[page.index()];
}

bool PagePool::give_back(PageId page) {
  TANDEM_CHECK(owners_[page.index()] > 0);
  if (--owners_[page.index()] > 0) return false;
  free_.push_back(page);
  return true;
}

}  // namespace tandem
