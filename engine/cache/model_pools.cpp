#include "engine/cache/model_pools.h"

#include <algorithm>

#include "engine/base/mutation.h"
#include "engine/cache/sequence_cache.h"

namespace tandem {
namespace {

std::string check_pool(const PagePool& pool, std::span<const int> owners, const char* name) {
  int64_t free = 0, cached = 0, used = 0;
  for (size_t p = 0; p < owners.size(); ++p) {
    const PageId page(static_cast<int64_t>(p));
    if (pool.owners(page) != owners[p]) {
      return std::string(name) + " page " + std::to_string(p) + " has " +
             std::to_string(owners[p]) + " owners, and " + std::to_string(pool.owners(page)) +
             " by the pool's count";
    }
    const bool unused = !pool.pinned(page) && owners[p] == (pool.indexed(page) ? 1 : 0);
    ++(!unused ? used : pool.indexed(page) ? cached : free);
  }
  if (free == pool.free() && cached == pool.cached() && used == pool.used()) return "";
  return std::string(name) + " pages: " + std::to_string(free) + " free, " + std::to_string(used) +
         " used, " + std::to_string(cached) + " cached; by the pool's count " +
         std::to_string(pool.free()) + ", " + std::to_string(pool.used()) + ", " +
         std::to_string(pool.cached());
}

}  // namespace

PageId ModelPools::take_kv(const std::string& client) {
  if (kv.free() == 0) {
    std::vector<PageId> freed;
    prefixes.evict(client, &freed);
    for (const PageId page : freed) log_freed(Store::kKv, page);
  }
  return kv.take();
}

void ModelPools::release(Store store, PageId page) {
  if (mutated(Mutation::kDoubleFree) && store == Store::kKv && kv.users(page) > 1) kv.release(page);
  if (of(store).release(page)) log_freed(store, page);
}

void ModelPools::unpin(Store store, PageId page) {
  if (of(store).unpin(page)) log_freed(store, page);
}

void ModelPools::forget_prefix(PageId page) {
  std::vector<PageId> freed;
  prefixes.forget(page, &freed);
  for (const PageId p : freed) log_freed(Store::kKv, p);
}

void ModelPools::forget_lora(LoraId lora) {
  std::vector<PageId> freed;
  prefixes.forget_lora(lora, &freed);
  for (const PageId page : freed) log_freed(Store::kKv, page);
}

void ModelPools::drop_prefixes() {
  std::vector<PageId> freed;
  prefixes.clear(&freed);
  for (const PageId page : freed) log_freed(Store::kKv, page);
}

void ModelPools::log_freed(Store store, PageId page) {
  Move freed;
  freed.kind = Move::kFree;
  freed.store = store;
  freed.from = {model, page, 0};
  moves->push_back(freed);
}

std::string ModelPools::check(std::span<const SequenceCache* const> caches) const {
  std::vector<int> in_kv(static_cast<size_t>(kv.total()), 0);
  std::vector<int> in_frontier(static_cast<size_t>(frontier.total()), 0);
  std::vector<int> in_values(static_cast<size_t>(values.total()), 0);
  for (const SequenceCache* cache : caches) {
    for (const PageId page : cache->pages()) ++in_kv[page.index()];
    for (const PageId page : cache->frontier_pages()) {
      if (page.valid()) ++in_frontier[page.index()];
    }
    for (const PageId value : cache->values()) ++in_values[value.index()];
  }
  for (const PageId page : prefixes.pages()) ++in_kv[page.index()];
  std::string wrong = prefixes.check();
  if (wrong.empty()) wrong = check_pool(kv, in_kv, "KV");
  if (wrong.empty()) wrong = check_pool(frontier, in_frontier, "frontier");
  if (wrong.empty()) wrong = check_pool(values, in_values, "value");
  if (wrong.empty()) {
    const auto twice =
        std::find_if(in_frontier.begin(), in_frontier.end(), [](int n) { return n > 1; });
    if (twice != in_frontier.end()) wrong = "a frontier page with two owners";
  }
  return wrong;
}

}  // namespace tandem
