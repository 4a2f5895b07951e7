// The pages of one pool: free pages, and the owners of each used page.
//
// The prefix index (prefix_index.h) is one owner of each page that it has indexed. A page with no
// other owner is cached: neither free nor used, and evictable at any time. So free + used + cached
// = total. Pages that pending moves name are pinned: their owners may release them, but they count
// as used until the last pin is removed.
//
// Cached pages belong to the client that indexed them. A client that needs a page while it has more
// than its share of the cached ones loses its own oldest page, so it cannot evict those of others.
// Shares are equal. Otherwise the page that has been cached longest is evicted.
//
// Bookkeeping only; the backend holds the bytes. Not thread-safe: on the loop only.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <string>
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

  // Adds or removes the prefix index as an owner. `client`: who indexed the page.
  void add_to_index(PageId page, const std::string& client = "");
  bool remove_from_index(PageId page);  // true: the page is free now
  bool indexed(PageId page) const { return indexed_[page.index()] != 0; }
  // The cached page to evict for a page that `client` needs. REQUIRES: cached() > 0.
  PageId evicted_for(const std::string& client) const;

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

  // Clients with indexed pages.
  int64_t clients() const { return std::ssize(clients_); }

 private:
  struct Client {
    std::list<PageId> cached;  // longest cached first
    int64_t indexed = 0;       // pages
  };
  using Clients = std::map<std::string, Client>;

  void add_cached(PageId page);
  void remove_cached(PageId page);
  bool is_cached(PageId page) const { return owners(page) == 1 && indexed(page) && !pinned(page); }
  bool update_free(PageId page);

  std::vector<int> owners_;    // by page; 0: free
  std::vector<PageId> free_;   // last freed first
  std::vector<char> indexed_;  // by page
  std::vector<int> pins_;      // by page
  int64_t pinned_ = 0;
  std::list<PageId> cached_;  // of all clients, longest cached first
  Clients clients_;           // with indexed pages
  int64_t sharing_ = 0;       // clients with cached pages
  // By page, if it is cached: its places in the two lists.
  std::vector<std::list<PageId>::iterator> place_, place_of_client_;
  std::vector<Clients::pointer> client_;  // by page, if it is indexed
};

}  // namespace tandem
