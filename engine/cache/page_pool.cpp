#include "engine/cache/page_pool.h"

#include "engine/base/check.h"

namespace tandem {

PagePool::PagePool(int64_t pages)
    : owners_(static_cast<size_t>(pages), 0),
      indexed_(owners_.size(), 0),
      pins_(owners_.size(), 0),
      place_(owners_.size()),
      place_of_client_(owners_.size()),
      client_(owners_.size(), nullptr) {
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
  TANDEM_CHECK(owners(page) > 0);
  if (is_cached(page)) remove_cached(page);
  ++owners_[page.index()];
}

bool PagePool::release(PageId page) {
  TANDEM_CHECK(owners(page) > (indexed(page) ? 1 : 0));
  --owners_[page.index()];
  return update_free(page);
}

void PagePool::add_to_index(PageId page, const std::string& client) {
  TANDEM_CHECK(owners(page) > 0 && !indexed(page));
  ++owners_[page.index()];
  indexed_[page.index()] = 1;
  client_[page.index()] = &*clients_.try_emplace(client).first;
  ++client_[page.index()]->second.indexed;
}

bool PagePool::remove_from_index(PageId page) {
  TANDEM_CHECK(indexed(page));
  if (is_cached(page)) remove_cached(page);
  const Clients::pointer client = client_[page.index()];
  if (--client->second.indexed == 0) clients_.erase(clients_.find(client->first));
  indexed_[page.index()] = 0;
  --owners_[page.index()];
  return update_free(page);
}

void PagePool::pin(PageId page) {
  TANDEM_CHECK(owners(page) > 0);
  if (is_cached(page)) remove_cached(page);
  pinned_ += ++pins_[page.index()] == 1 ? 1 : 0;
}

bool PagePool::unpin(PageId page) {
  TANDEM_CHECK(pinned(page));
  if (--pins_[page.index()] > 0) return false;
  --pinned_;
  return update_free(page);
}

// The page has lost an owner or a pin. True: it is free now.
bool PagePool::update_free(PageId page) {
  if (owners(page) == 0 && !pinned(page)) {
    free_.push_back(page);
    return true;
  }
  if (is_cached(page)) add_cached(page);
  return false;
}

void PagePool::add_cached(PageId page) {
  std::list<PageId>& own = client_[page.index()]->second.cached;
  if (own.empty()) ++sharing_;
  place_of_client_[page.index()] = own.insert(own.end(), page);
  place_[page.index()] = cached_.insert(cached_.end(), page);
}

void PagePool::remove_cached(PageId page) {
  std::list<PageId>& own = client_[page.index()]->second.cached;
  own.erase(place_of_client_[page.index()]);
  if (own.empty()) --sharing_;
  cached_.erase(place_[page.index()]);
}

PageId PagePool::evicted_for(const std::string& client) const {
  TANDEM_CHECK(!cached_.empty());
  const auto own = clients_.find(client);
  if (own != clients_.end() && std::ssize(own->second.cached) > cached() / sharing_) {
    return own->second.cached.front();
  }
  return cached_.front();
}

}  // namespace tandem
