// Pages of one pool: which are free, and how many owners each used one has.
//
// Bookkeeping only; the bytes are the backend's. Not thread-safe: on the loop only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  // A page with one owner. REQUIRES: free() > 0.
  PageId take();
  void share(PageId page);      // one owner more
  bool give_back(PageId page);  // one owner less; true: the page is free now

  int owners(PageId page) const { return owners_[page.index()]; }
  int64_t total() const { return static_cast<int64_t>(owners_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return total() - free(); }

 private:
  std::vector<int> owners_;   // by page; 0: free
  std::vector<PageId> free_;  // last freed first
};

}  // namespace tandem
