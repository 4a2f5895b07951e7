#include "engine/sched/reservation.h"

#include <algorithm>
#include <limits>
#include <map>

#include "engine/base/mutation.h"

namespace tandem {

Reservation::Want& Reservation::want_of(SequenceCache* cache) {
  const auto known = std::find_if(wants_.begin(), wants_.end(), [cache](const Want& w) {
    return w.cache == cache;  // early exit: two stages of one cache
  });
  if (known != wants_.end()) return *known;
  constexpr int kAny = std::numeric_limits<int>::max();
  return wants_.emplace_back(Want{cache, 0, cache->pools()->layers, kAny, 0, 0, 0, kAny, 0, {}});
}

// An encoder's rows are all there or not at all.
void Reservation::want_memories(std::span<const Need> needs) {
  if (!caches_->is_fed()) return;
  for (const Need& need : needs) {
    const CacheId memory = caches_->feed_of(*caches_->find(need.stage.cache)).memory;
    if (!memory.valid()) continue;
    Want& want = want_of(caches_->find(memory));
    want.total = static_cast<int>(caches_->apart(memory)->size());
    want.adoptable = 0;
  }
}

// What caches are fed with is there in the same round: places for the hidden rows of their sources,
// and room for the rows that leave them. A row of a source that is there already has left nothing.
// A source that runs tokens of its own leaves all of them: any may be wanted.
void Reservation::want_sources() {
  if (!caches_->is_fed()) return;
  feeding_.clear();
  for (size_t i = 0; i < wants_.size(); ++i) {
    const SequenceCache& fed = *wants_[i].cache;
    const CacheSet::Feed feed = caches_->feed_of(fed);
    if (!feed.source.cache.valid() || fed.rows() >= feed.rows) continue;
    SequenceCache* const source = caches_->find(feed.source.cache);
    const std::vector<Token>* const apart = caches_->apart(source->id());
    const int first = apart ? 0 : fed.rows();
    const int end = apart ? static_cast<int>(apart->size()) : feed.rows;
    if (source->idle()) source->settle();
    if (source->rows() > first) source->truncate(first);
    Want& want = want_of(source);
    want.total = std::max(want.total, end);
    want.adoptable = std::min(want.adoptable, first);
    want.fed = end - first;
    if (feed.source.to < source->pools()->layers) {
      want.frontier_to = feed.source.to;
      want.frontier_begin = 0;
      want.frontier_total = std::max(want.frontier_total, end);
    }
    const int at = feed.fed.at > 0 ? feed.fed.at : feed.source.to;
    feeding_.push_back({source->id(), first, end, at});
  }
}

const Reservation::Feeding* Reservation::feeding(CacheId source) const {
  const auto found = std::ranges::find(feeding_, source, &Feeding::source);
  return found == feeding_.end() ? nullptr : &*found;
}

void Reservation::want(std::span<const Need> needs, std::span<const Token> tokens) {
  wants_.clear();
  for (const Need& need : needs) {
    SequenceCache* c = caches_->find(need.stage.cache);
    if (c->idle()) c->settle();
    Want& want = want_of(c);
    const int total = c->rows(need.stage.to) + need.rows;
    want.total = std::max(want.total, total);
    want.hidden += need.hidden;
    want.adoptable = std::min(want.adoptable, need.reads_from);
    if (need.stage.to >= c->pools()->layers) continue;
    want.frontier_to = std::min(want.frontier_to, need.stage.to);
    want.frontier_begin = std::min(want.frontier_begin, std::max(0, total - need.frontier));
    want.frontier_total = std::max(want.frontier_total, total);
  }
  want_memories(needs);
  want_sources();
  for (const Want& want : wants_) {
    if (caches_->forget_taken_over(want.cache->id())) want.cache->truncate(want.adoptable);
  }
  for (const auto& held : caches_->all()) {
    if (!held->idle()) continue;
    held->release_unused();
    held->know(tokens);
  }
  const int known = static_cast<int>(tokens.size()) - 1;  // the last token's row may be dropped
  caches_->publish(tokens.first(static_cast<size_t>(known)), /*over=*/false);
  for (Want& want : wants_) want.adoptable = std::min({want.adoptable, want.total, known});
}

PageNeed Reservation::need_of(const Want& want) {
  PageNeed need = want.cache->need(want.total, want.cache->pools()->layers);
  if (want.frontier_total > 0) {
    const SequenceCache& cache = *want.cache;
    need.frontier = cache.need(want.frontier_total, want.frontier_to, want.frontier_begin).frontier;
  }
  need.values = want.hidden + want.fed;
  return need;
}

bool Reservation::can_grant(std::vector<const PagePool*>* lacking) const {
  const auto fits = [](const PageNeed& need, const ModelPools& pools) {
    return need.kv <= pools.kv.available() && need.frontier <= pools.frontier.available() &&
           need.values <= pools.values.available();
  };
  if (wants_.size() == 1 && fits(need_of(wants_[0]), *wants_[0].cache->pools())) return true;
  struct Sum {
    PageNeed need;
    std::map<PageId, int> copies;  // of a shared page: by how many caches
  };
  // Needs of one pool add up: a sequence may have several caches in it.
  std::map<const ModelPools*, Sum> sums;
  for (const Want& want : wants_) {
    Sum& sum = sums[want.cache->pools()];
    const PageNeed need = need_of(want);
    sum.need.kv += need.kv;
    sum.need.frontier += need.frontier;
    sum.need.values += need.values;
    for (const PageId page : want.cache->shared_pages(want.total)) ++sum.copies[page];
  }
  bool enough = true;
  for (auto& [pools, sum] : sums) {
    // Where all owners of a page copy it, the last one finds itself alone and needs no copy.
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

void Reservation::grant(RunHost* host) {
  frontier_begin_.clear();
  for (const Want& w : wants_) {
    if (w.looked_up) host->prefix_looked_up(w.adoptable, w.adopted);
    w.cache->reserve(w.total, w.cache->pools()->layers);
    if (w.frontier_total > 0) {
      w.cache->reserve(w.frontier_total, w.frontier_to, w.frontier_begin);
      frontier_begin_.emplace_back(w.cache->id(), w.frontier_begin);
    }
    w.cache->reserve_values(w.hidden + w.fed);
  }
  wants_.clear();
}

int Reservation::frontier_begin(CacheId cache) const {
  const auto known = std::find_if(frontier_begin_.begin(), frontier_begin_.end(),
                                  [cache](const auto& entry) { return entry.first == cache; });
  return known == frontier_begin_.end() ? 0 : known->second;
}

void Reservation::evicted() {
  for (Want& want : wants_) want.looked_up.reset();
  want_sources();
}

void Reservation::adopt(std::span<const Token> tokens) {
  if (!caches_->prefix_cache()) return;
  for (Want& want : wants_) {
    SequenceCache* c = want.cache;
    if (!c->pools()->prefix_cache || c->rows() > 0 || want.adoptable < c->pools()->page_rows ||
        !caches_->runs_tokens(c->id()) || !c->idle()) {
      continue;
    }
    const uint64_t version = c->pools()->prefixes.version();
    if (want.looked_up == version) continue;
    want.looked_up = version;
    want.adopted = c->adopt(caches_->root(c->model()), tokens, want.adoptable);
  }
}

std::vector<PageId> Reservation::known_pages(size_t role, const ModelPools& pools,
                                             std::span<const Token> tokens) const {
  if (!pools.prefix_cache || !caches_->prefix_cache() || !caches_->runs_tokens(role)) return {};
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
  return static_cast<int64_t>(known_pages(role, pools, tokens).size()) * pools.page_rows;
}

}  // namespace tandem
