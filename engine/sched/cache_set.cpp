#include "engine/sched/cache_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/mutation.h"

namespace tandem {
namespace {

// Calls f with each page of `pool` that `cache` holds; of hidden rows, each is one.
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

// What the rows of a role are fed with.
std::string fed_with(const SequenceSpec& spec, const RoleModel& role) {
  if (role.fed.role < 0) return "";
  const RoleModel& source = spec.roles[static_cast<size_t>(role.fed.role)];
  return absl::StrCat("rows of ", source.model.value, " after ", role.fed.at, " of ", source.to,
                      role.fed.replace ? " alone" : " and tokens", " through ", role.adapter.value,
                      " of ", absl::StrJoin(spec.read, ","));
}

PrefixRoot root_of(const SequenceSpec& spec, const RoleModel& role) {
  PrefixRoot root{mutated(Mutation::kIgnoreSalt) ? "" : spec.salt, role.adapter,
                  fed_with(spec, role)};
  if (role.memory >= 0) {  // the encoder and its tokens themselves: no two are taken for one
    const RoleModel& memory = spec.roles[static_cast<size_t>(role.memory)];
    absl::StrAppend(&root.source, memory.model.value, ":",
                    absl::StrJoin(spec.request_of(memory), ","),
                    mutated(Mutation::kForgetFeed) ? "" : fed_with(spec, memory));
  }
  return root;
}

}  // namespace

CacheSet::CacheSet(const SequenceSpec* spec, RunHost* host) : spec_(spec), host_(host) {
  for (const RoleModel& role : spec->roles) {
    roots_.emplace_back(role.model, root_of(*spec, role));
    is_fed_ |= role.memory >= 0 || role.adapter.valid() || role.masks.valid() || role.fed.role >= 0;
  }
}

// What prefixes hang on names models as the request did: it is the same for all replicas.
void CacheSet::placed() {
  TANDEM_CHECK(caches_.empty());
  for (size_t i = 0; i < roots_.size(); ++i) roots_[i].first = spec_->roles[i].model;
}

void CacheSet::open() {
  for (const RoleModel& role : spec_->roles) {
    ModelPools* pools = host_->pools(role.model);
    CacheId id;
    for (const auto& held : caches_) {
      if (held->pools() == pools) id = held->id();  // early exit: two roles, one cache
    }
    if (!id.valid()) {
      id = host_->new_cache_id();
      caches_.push_back(std::make_unique<SequenceCache>(id, pools));
    }
    stages_.emplace_back(role.role, Stage{id, role.to > 0 ? role.to : pools->layers});
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
  const CacheId copy = host_->new_cache_id();
  auto forked = std::make_unique<SequenceCache>(copy, from->pools());
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

// By layers too: with early exit, small and large share a cache. By model, not by cache: a forked
// one plays the same part.
Role CacheSet::role_of(const SequenceCache& cache, int to) const {
  for (const auto& [role, stage] : stages_) {
    if (to != stage.to) continue;
    if (cache.id() == stage.cache || cache.model() == find(stage.cache)->model()) return role;
  }
  return Role::kSmall;
}

CacheSet::Feed CacheSet::fed(const SequenceCache& cache) const {
  for (const RoleModel& role : spec_->roles) {
    if (role.model != cache.model()) continue;
    Feed feed;
    feed.adapter = role.adapter.valid() ? role.adapter : role.masks;
    if (role.memory >= 0) feed.memory = stages_[static_cast<size_t>(role.memory)].second.cache;
    if (role.fed.role >= 0) {
      feed.source = stages_[static_cast<size_t>(role.fed.role)].second;
      feed.fed = role.fed;
      feed.rows = static_cast<int>(spec_->request_of(role).size());
      feed.beside = spec_->beside;
    }
    return feed;
  }
  return {};
}

const PrefixRoot& CacheSet::root(ModelId model) const {
  const auto known = std::find_if(roots_.begin(), roots_.end(),
                                  [model](const auto& r) { return r.first == model; });
  TANDEM_CHECK(known != roots_.end());
  return known->second;
}

const RoleModel* CacheSet::role_with(CacheId id) const {
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].second.cache == id) return &spec_->roles[i];
  }
  return nullptr;
}

const std::vector<Token>* CacheSet::apart(CacheId id) const {
  const RoleModel* const role = role_with(id);
  return role && spec_->runs_apart(*role) ? &spec_->request_of(*role) : nullptr;
}

bool CacheSet::encodes(CacheId id) const {
  const RoleModel* const role = role_with(id);
  return role && SequenceSpec::encodes(*role);
}

bool CacheSet::runs_tokens(CacheId id) const {
  if (apart(id) != nullptr) return false;
  return std::any_of(stages_.begin(), stages_.end(), [id](const auto& s) {
    return s.second.cache == id && (s.first == Role::kLarge || s.first == Role::kSmall);
  });
}

bool CacheSet::runs_tokens(size_t role) const {
  const RoleModel& played = spec_->roles[role];
  if (spec_->runs_apart(played)) return false;
  return played.role == Role::kLarge || played.role == Role::kSmall;
}

void CacheSet::publish(std::span<const Token> tokens, bool over) {
  if (!spec_->prefix_cache) return;
  for (const auto& held : caches_) {
    if (!held->has_news(tokens.size()) || !(held->idle() || over)) continue;
    if (runs_tokens(held->id())) held->publish(root(held->model()), tokens);
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
    if (mine->rows() > 0 || !runs_tokens(id)) continue;
    const auto fed = theirs->fed();
    const auto [end, _] = std::ranges::mismatch(fed, prompt);
    const auto rows = std::min({static_cast<int>(end - fed.begin()), theirs->reusable(),
                                static_cast<int>(prompt.size()) - 1});
    if (rows <= 0) continue;
    mine->fork_from(*theirs, rows);
    taken_over_.push_back(id);
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
