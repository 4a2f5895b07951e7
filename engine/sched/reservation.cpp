#include "engine/sched/reservation.h"

#include <algorithm>
#include <map>

#include "engine/base/mutation.h"
#include "engine/sched/conditioning.h"

namespace tandem {

void Reservation::begin_round(std::span<const Need> needs, std::span<const Token> tokens) {
  require(needs);
  drop_adopted_rows();
  commit(tokens);
  const int known = static_cast<int>(tokens.size()) - 1;  // the last token's row may be dropped
  for (CacheRequirement& r : required_) r.adoptable = std::min({r.adoptable, r.rows, known});
}

void Reservation::require(std::span<const Need> needs) {
  required_.clear();
  for (const Need& need : needs) {
    SequenceCache* c = caches_->find(need.stage.cache);
    if (c->idle()) c->commit_tree();
    CacheRequirement& r = required_.of(c);
    const int rows = c->rows(need.stage.to) + need.rows;
    r.rows = std::max(r.rows, rows);
    r.adoptable = std::min(r.adoptable, need.reads_from);
    if (need.stage.to >= c->pools()->layers) continue;
    r.frontier_to = std::min(r.frontier_to, need.stage.to);
    r.frontier_begin = std::min(r.frontier_begin, std::max(0, rows - need.frontier));
    r.frontier_end = std::max(r.frontier_end, rows);
  }
  if (conditioning_) conditioning_->require(needs, &required_);
}

// A follower adopts its leader's rows before its first round states Need::reads_from.
void Reservation::drop_adopted_rows() {
  for (const CacheRequirement& r : required_) {
    if (caches_->take_adopted(r.cache->id())) r.cache->truncate(r.adoptable);
  }
}

void Reservation::commit(std::span<const Token> tokens) {
  for (const auto& cache : caches_->all()) {
    if (!cache->idle()) continue;
    cache->release_unused();
    cache->resolve_inputs(tokens);
  }
  caches_->publish(tokens.first(tokens.size() - 1), /*over=*/false);
}

PageNeed Reservation::need_of(const CacheRequirement& required) {
  const SequenceCache& cache = *required.cache;
  PageNeed need = cache.need(required.rows, cache.pools()->layers);
  if (required.frontier_end > 0) {
    need.frontier =
        cache.need(required.frontier_end, required.frontier_to, required.frontier_begin).frontier;
  }
  need.values = required.values;
  return need;
}

bool Reservation::can_grant(std::vector<const PagePool*>* lacking) const {
  const auto fits = [](const PageNeed& need, const ModelPools& pools) {
    return need.kv <= pools.kv.available() && need.frontier <= pools.frontier.available() &&
           need.values <= pools.values.available();
  };
  if (required_.size() == 1) {
    const CacheRequirement& only = *required_.begin();
    if (fits(need_of(only), *only.cache->pools())) return true;
  }
  struct Sum {
    PageNeed need;
    std::map<PageId, int> copies;  // of a shared page: caches that would copy it
  };
  std::map<const ModelPools*, Sum> sums;  // several caches may use one pool
  for (const CacheRequirement& r : required_) {
    Sum& sum = sums[r.cache->pools()];
    const PageNeed need = need_of(r);
    sum.need.kv += need.kv;
    sum.need.frontier += need.frontier;
    sum.need.values += need.values;
    for (const PageId page : r.cache->shared_pages(r.rows)) ++sum.copies[page];
  }
  bool enough = true;
  for (auto& [pools, sum] : sums) {
    // If all owners of a page copy it, the last one is the only owner left and needs no copy.
    for (const auto& [page, n] : sum.copies) sum.need.kv -= n == pools->kv.users(page) ? 1 : 0;
    if (fits(sum.need, *pools)) continue;
    if (mutated(Mutation::kOverGrant) && sums.size() > 1) continue;
    enough = false;
    if (!lacking) break;
    if (sum.need.kv > pools->kv.available()) lacking->push_back(&pools->kv);
    if (sum.need.frontier > pools->frontier.available()) lacking->push_back(&pools->frontier);
    if (sum.need.values > pools->values.available()) lacking->push_back(&pools->values);
  }
  return enough;
}

void Reservation::grant(LoopServices* loop) {
  frontier_begin_.clear();
  for (const CacheRequirement& r : required_) {
    if (r.looked_up) loop->prefix_looked_up(r.adoptable, r.adopted);
    r.cache->reserve(r.rows, r.cache->pools()->layers);
    if (r.frontier_end > 0) {
      r.cache->reserve(r.frontier_end, r.frontier_to, r.frontier_begin);
      frontier_begin_.emplace_back(r.cache->id(), r.frontier_begin);
    }
    if (r.values > 0) r.cache->reserve_values(r.values);
  }
  required_.clear();
}

int Reservation::frontier_begin(CacheId cache) const {
  const auto known = std::find_if(frontier_begin_.begin(), frontier_begin_.end(),
                                  [cache](const auto& entry) { return entry.first == cache; });
  return known == frontier_begin_.end() ? 0 : known->second;
}

void Reservation::preempted() {
  for (CacheRequirement& r : required_) r.looked_up.reset();
  if (conditioning_) conditioning_->require_sources(&required_);
}

void Reservation::adopt(std::span<const Token> tokens) {
  if (!caches_->prefix_cache()) return;
  bool borrows = false;
  for (CacheRequirement& r : required_) {
    SequenceCache* c = r.cache;
    if (!c->pools()->prefix_cache || c->rows() > 0 || r.adoptable <= 0 ||
        !caches_->runs_sequence(c->id()) || !c->idle()) {
      continue;
    }
    const uint64_t version = c->pools()->prefixes.version();
    if (r.looked_up == version) continue;
    r.looked_up = version;
    const PrefixRoot& root = caches_->root(c->model());
    r.adopted = c->adopt(root, tokens, r.adoptable);
    // The round writes later rows of a borrowed page, and so copies it.
    const int borrowed = c->borrow(root, tokens, std::min(r.adoptable, r.rows - 1));
    borrows |= borrowed > 0;
    r.adopted += borrowed;
  }
  // A copy takes a page more than the request needs, so the round may not fit only because of it.
  if (borrows && !can_grant()) {
    for (CacheRequirement& r : required_) r.adopted -= r.cache->return_borrowed();
  }
}

bool Reservation::shares_prefixes(size_t role, const ModelPools& pools) const {
  return pools.prefix_cache && caches_->prefix_cache() && caches_->runs_sequence(role);
}

std::vector<PageId> Reservation::known_pages(size_t role, const ModelPools& pools,
                                             std::span<const Token> tokens) const {
  if (!shares_prefixes(role, pools)) return {};
  const auto most = (tokens.size() - 1) / static_cast<size_t>(pools.page_rows);
  return pools.prefixes.find(caches_->root_of_role(role), tokens, most);
}

int64_t Reservation::first_pages(size_t role, const ModelPools& pools,
                                 std::span<const Token> tokens) const {
  int64_t pages = static_cast<int64_t>(tokens.size()) / pools.page_rows + 1;
  for (const PageId page : known_pages(role, pools, tokens)) {
    if (pools.kv.users(page) > 0) --pages;
  }
  return pages;
}

int64_t Reservation::known_rows(size_t role, const ModelPools& pools,
                                std::span<const Token> tokens) const {
  const std::vector<PageId> pages = known_pages(role, pools, tokens);
  const auto rows = static_cast<int64_t>(pages.size()) * pools.page_rows;
  if (!shares_prefixes(role, pools)) return rows;
  const PageId last = pages.empty() ? PageId() : pages.back();
  const auto rest = tokens.first(tokens.size() - 1).subspan(static_cast<size_t>(rows));
  const PrefixRoot& root = caches_->root_of_role(role);
  return rows + pools.prefixes.find_beginning(root, last, rest, caches_->writer()).rows;
}

}  // namespace tandem
