// The pages of one pool: free pages, and the owners of each used page.
//
// The prefix index (prefix_index.h) is one owner of each page that it has indexed. A page with no
// other owner is cached: neither free nor used, and evictable at any time. So free + used + cached
// = total. Pages that pending moves name are pinned: their owners may release them, but they count
// as used until the last pin is removed.
//
// Bookkeeping only; the backend holds the bytes. Not thread-safe: on the loop only.
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
  void share(PageId page);    // adds an owner
  bool release(PageId page);  // removes an owner; true: the page is free now

  // Adds or removes the prefix index as an owner.
  void add_to_index(PageId page);
  bool remove_from_index(PageId page);  // true: the page is free now
  bool indexed(PageId page) const { return indexed_[page.index()] != 0; }
  // The page that has been cached longest. REQUIRES: cached() > 0.
  PageId oldest() const { return cached_.front(); }

  void pin(PageId page);
  bool unpin(PageId page);  // true: the page is free now
  bool pinned(PageId page) const { return pins_[page.index()] > 0; }
  int64_t pinned() const { return pinned_; }  // pages with at least one pin

  int owners(PageId page) const { return owners_[page.index()]; }  // including the index
  int users(PageId page) const { return owners(page) - indexed_[page.index()]; }
  int64_t total() const { return static_cast<int64_t>(owners_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached() const { return static_cast<int64_t>(cached_.size()); }
  int64_t used() const { return total() - free() - cached(); }
  int64_t available() const { return free() + cached(); }

 private:
  bool is_cached(PageId page) const { return owners(page) == 1 && indexed(page) && !pinned(page); }
  bool update_free(PageId page);

  std::vector<int> owners_;    // by page; 0: free
  std::vector<PageId> free_;   // last freed first
  std::vector<char> indexed_;  // by page
  std::vector<int> pins_;      // by page
  int64_t pinned_ = 0;
  std::list<PageId> cached_;                        // longest cached first
  std::vector<std::list<PageId>::iterator> place_;  // by page, if it is in cached_
};

}  // namespace tandem
