#include "engine/sched/cache_set.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/sched/conditioning.h"

namespace tandem {
namespace {

// Calls f with each page of `pool` that `cache` holds.
template <class F>
void for_pages(const SequenceCache& cache, const PagePool* pool, F f) {
  if (pool == &cache.pools()->kv) {
    for (const PageId page : cache.pages()) f(page);
  } else if (pool == &cache.pools()->frontier) {
    for (const PageId page : cache.frontier_pages()) {
      if (page.valid()) f(page);
    }
  } else if (pool == &cache.pools()->values) {
    for (const PageId value : cache.values()) f(value);
  }
}

PrefixRoot root_of(const SequenceSpec& spec, size_t role) {
  return {mutated(Mutation::kIgnoreSalt) ? "" : spec.salt, spec.roles()[role].adapter,
          mutated(Mutation::kIgnoreLora) ? LoraId() : spec.roles()[role].lora,
          spec.cast->has_edges() ? prefix_dependencies(spec, role) : ""};
}

}  // namespace

CacheSet::CacheSet(const SequenceSpec* spec, LoopServices* loop) : spec_(spec), loop_(loop) {
  for (size_t i = 0; i < spec->roles().size(); ++i) {
    const CastRole& role = spec->roles()[i];
    roots_.emplace_back(role.model, root_of(*spec, i));
    has_adapters_ |= role.adapter.valid() || role.mask_adapter.valid();
    has_loras_ |= role.lora.valid();
  }
}

// Roots name models as the request did, so replicas share them.
void CacheSet::placed() {
  TANDEM_CHECK(caches_.empty());
  for (size_t i = 0; i < roots_.size(); ++i) roots_[i].first = spec_->roles()[i].model;
}

void CacheSet::open() {
  for (const CastRole& role : spec_->roles()) {
    ModelPools* pools = loop_->pools(role.model);
    CacheId id;
    for (const auto& held : caches_) {
      if (held->pools() == pools) id = held->id();  // early exit: two roles, one cache
    }
    if (!id.valid()) {
      id = loop_->new_cache_id();
      caches_.push_back(std::make_unique<SequenceCache>(id, pools, spec_->salt, spec_->client));
    }
    stages_.emplace_back(role.role, Stage{id, role.layers > 0 ? role.layers : pools->layers});
  }
}

void CacheSet::close() {
  if (mutated(Mutation::kLeakCache)) {
    for (auto& held : caches_) static_cast<void>(held.release());
  }
  caches_.clear();
}

SequenceCache* CacheSet::find_idle(CacheId id) const {
  SequenceCache* const found = find(id);
  TANDEM_CHECK(found->idle());
  return found;
}

CacheId CacheSet::fork(CacheId id) {
  SequenceCache* from = find_idle(id);
  const CacheId copy = loop_->new_cache_id();
  auto forked = std::make_unique<SequenceCache>(copy, from->pools(), from->client());
  forked->fork_from(*from);
  caches_.push_back(std::move(forked));
  return copy;
}

void CacheSet::drop(CacheId id) {
  TANDEM_CHECK(std::none_of(stages_.begin(), stages_.end(),
                            [id](const auto& s) { return s.second.cache == id; }));
  const SequenceCache* const dropped = find_idle(id);
  caches_.erase(
      std::ranges::find_if(caches_, [dropped](const auto& held) { return held.get() == dropped; }));
}

Stage CacheSet::stage(Role role, int i) const {
  for (const auto& [r, stage] : stages_) {
    if (r == role && i-- == 0) return stage;
  }
  TANDEM_CHECK(!"the method asked for a role that its deployment does not have");
  return {};
}

// By layers too: with early exit, small and large share a cache. By model, not by cache: a fork has
// another id.
Role CacheSet::role_of(const SequenceCache& cache, int to) const {
  for (const auto& [role, stage] : stages_) {
    if (to != stage.to) continue;
    if (cache.id() == stage.cache || cache.model() == find(stage.cache)->model()) return role;
  }
  TANDEM_CHECK(!"no role runs to this layer on this cache");
  return {};
}

size_t CacheSet::first_role_of(const SequenceCache& cache) const {
  const auto role = std::ranges::find(spec_->roles(), cache.model(), &CastRole::model);
  TANDEM_CHECK(role != spec_->roles().end());
  return static_cast<size_t>(role - spec_->roles().begin());
}

AdapterId CacheSet::find_adapter(const SequenceCache& cache, const Tree& add) const {
  const CastRole& role = spec_->roles()[first_role_of(cache)];
  if (!role.adapter.valid()) return role.mask_adapter;
  const auto is_mask = [](const In& in) { return in.kind == In::kMask; };
  const bool masks = role.mask_adapter.valid() && std::ranges::any_of(add.in, is_mask);
  return masks ? role.mask_adapter : role.adapter;
}

LoraId CacheSet::find_lora(const SequenceCache& cache) const {
  return spec_->roles()[first_role_of(cache)].lora;
}

const PrefixRoot& CacheSet::root(ModelId model) const {
  const auto known = std::find_if(roots_.begin(), roots_.end(),
                                  [model](const auto& r) { return r.first == model; });
  TANDEM_CHECK(known != roots_.end());
  return known->second;
}

bool CacheSet::runs_sequence(CacheId id) const {
  bool runs = false;
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].second.cache != id) continue;
    if (spec_->runs_fixed_tokens(i)) return false;
    runs |= stages_[i].first == Role::kLarge || stages_[i].first == Role::kSmall;
  }
  return runs;
}

bool CacheSet::runs_sequence(size_t role) const {
  if (spec_->runs_fixed_tokens(role)) return false;
  const Role played = spec_->roles()[role].role;
  return played == Role::kLarge || played == Role::kSmall;
}

void CacheSet::publish(std::span<const Token> tokens, bool over) {
  if (!spec_->prefix_cache) return;
  for (const auto& held : caches_) {
    if (!held->can_publish(tokens.size()) || !(held->idle() || over)) continue;
    if (runs_sequence(held->id())) held->publish(root(held->model()), tokens);
  }
}

void CacheSet::adopt(const CacheSet& leader) {
  const std::vector<Token>& prompt = spec_->prompt;
  TANDEM_CHECK(prompt == leader.spec_->prompt && roots_ == leader.roots_);
  TANDEM_CHECK(stages_.size() == leader.stages_.size());
  for (size_t i = 0; i < stages_.size(); ++i) {
    const CacheId id = stages_[i].second.cache;
    SequenceCache* mine = find(id);
    SequenceCache* theirs = leader.find(leader.stages_[i].second.cache);
    TANDEM_CHECK(stages_[i].first == leader.stages_[i].first && mine->pools() == theirs->pools());
    if (mine->rows() > 0 || !runs_sequence(id)) continue;
    const auto inputs = theirs->inputs();
    const auto [end, _] = std::ranges::mismatch(inputs, prompt);
    const auto rows = std::min({static_cast<int>(end - inputs.begin()), theirs->reusable(),
                                static_cast<int>(prompt.size()) - 1});
    if (rows <= 0) continue;
    mine->fork_from(*theirs, rows);
    adopted_.push_back(id);
  }
}

void CacheSet::clear() {
  for (auto& held : caches_) held->clear();
}

bool CacheSet::holds_pages() const {
  return std::any_of(caches_.begin(), caches_.end(),
                     [](const auto& c) { return !c->pages().empty(); });
}

bool CacheSet::holds_pages_of(Pools pools) const {
  bool any = false;
  for (const auto& held : caches_) {
    for (const PagePool* pool : pools) {
      for_pages(*held, pool, [&](PageId) { any = true; });
    }
  }
  return any;
}

void CacheSet::count_pages_of(Pools pools, PageCounts* counts) const {
  for (const auto& held : caches_) {
    for (const PagePool* pool : pools) {
      for_pages(*held, pool, [&](PageId page) { ++(*counts)[{pool, page}]; });
    }
  }
}

void CacheSet::add_caches_of(const ModelPools& pools,
                             std::vector<const SequenceCache*>* caches) const {
  for (const auto& held : caches_) {
    if (held->pools() == &pools) caches->push_back(held.get());
  }
}

}  // namespace tandem
