// Pages of one pool: which are free, how many owners each used one has, and which are only cached.
//
// One of a page's owners may be the pool's prefix index (prefix_index.h). A page that nobody else
// owns is cached: it is neither free nor used, and can be given up at any time. So free + used +
// cached = total. A page that moves on their way name is pinned: whoever owns it may give it back,
// but it is used until the last pin is gone.
//
// Bookkeeping only; the bytes are the backend's. Not thread-safe: on the loop only.
#pragma once

#include <cstdint>
#include <list>
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

  // The prefix index becomes an owner, the only one of its kind, or is one no more.
  void keep(PageId page);
  bool drop(PageId page);  // true: the page is free now
  bool kept(PageId page) const { return kept_[page.index()] != 0; }
  // The page that has been cached for longest. REQUIRES: cached() > 0.
  PageId oldest() const { return cached_.front(); }

  void pin(PageId page);
  bool unpin(PageId page);  // true: the page is free now
  bool pinned(PageId page) const { return pins_[page.index()] > 0; }
  int64_t pinned() const { return pinned_; }  // pages with a pin or more

  int owners(PageId page) const { return owners_[page.index()]; }  // the index counts as one
  int users(PageId page) const { return owners(page) - kept_[page.index()]; }
  int64_t total() const { return static_cast<int64_t>(owners_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached() const { return static_cast<int64_t>(cached_.size()); }
  int64_t used() const { return total() - free() - cached(); }
  int64_t available() const { return free() + cached(); }  // what can be had at once

 private:
  bool is_cached(PageId page) const { return owners(page) == 1 && kept(page) && !pinned(page); }
  bool settle(PageId page);

  std::vector<int> owners_;   // by page; 0: free
  std::vector<PageId> free_;  // last freed first
  std::vector<char> kept_;    // by page
  std::vector<int> pins_;     // by page
  int64_t pinned_ = 0;
  std::list<PageId> cached_;                        // longest first
  std::vector<std::list<PageId>::iterator> place_;  // by page, of those in cached_
};

}  // namespace tandem
