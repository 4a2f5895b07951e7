// The caches of one sequence, and which roles they play.
//
// Loop thread only.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/base/check.h"
#include "engine/cache/sequence_cache.h"
#include "engine/decode/gen.h"
#include "engine/sched/loop_services.h"
#include "engine/sched/spec.h"

namespace tandem {

class CacheSet {
 public:
  // None yet; open() makes one for each role that does not share one. Both outlive it.
  CacheSet(const SequenceSpec* spec, LoopServices* loop);
  void placed();  // the roles' models are others. REQUIRES: not open
  void open();
  // Gives all pages back. REQUIRES: no pass is with a device.
  void close();

  // Few, and where the set itself lies.
  using Caches = absl::InlinedVector<std::unique_ptr<SequenceCache>, 2>;
  // In the order in which they were made, so ascending by id.
  const Caches& all() const { return caches_; }
  SequenceCache* find(CacheId id) const {  // REQUIRES: it is one of these
    size_t i = 0;
    while (i < caches_.size() && caches_[i]->id() != id) ++i;
    TANDEM_CHECK(i < caches_.size());
    return caches_[i].get();
  }
  SequenceCache* find_idle(CacheId id) const;  // REQUIRES: and no pass on it is under way
  CacheId fork(CacheId id);
  void drop(CacheId id);  // REQUIRES: a fork

  // The i-th stage that plays `role`. REQUIRES: there is one.
  Stage stage(Role role, int i) const;
  // The stage of a role, an index into SequenceSpec::roles().
  Stage stage_of(size_t role) const { return stages_[role].second; }
  // The role that a pass to layer `to` on this cache plays. A fork plays its origin's roles.
  // REQUIRES: a role has that stage.
  Role role_of(const SequenceCache& cache, int to) const;
  // The first role of the cache's model.
  size_t first_role_of(const SequenceCache& cache) const;
  // The adapter of the cache's passes; invalid: none.
  AdapterId adapter_of(const SequenceCache& cache) const {
    return has_adapters_ ? find_adapter(cache) : AdapterId();
  }
  // True: its rows are the sequence's tokens. False for workers, encoders and roles with tokens of
  // their own (SequenceSpec::runs_fixed_tokens), and for forks.
  bool runs_sequence(CacheId id) const;
  bool runs_sequence(size_t role) const;

  // Prefixes.
  // What the rows of a cache of this model depend on besides the sequence's tokens.
  const PrefixRoot& root(ModelId model) const;
  const PrefixRoot& root_of_role(size_t role) const { return roots_[role].second; }
  bool prefix_cache() const { return spec_->prefix_cache; }
  // Makes known what the caches hold of `tokens`, final ones from the first. Passes may be under
  // way only if the caches are `over`.
  void publish(std::span<const Token> tokens, bool over);
  // A follower's, see SequenceRun::adopt.
  void adopt(const CacheSet& leader);
  // Was `cache` given a leader's rows since it was last asked for?
  bool take_adopted(CacheId id) { return std::erase(adopted_, id) > 0; }

  // Empties all; the caches stay.
  void clear();

  // Pages.
  using Pools = std::span<const PagePool* const>;
  using PageCounts = std::map<std::pair<const PagePool*, PageId>, int>;
  bool holds_pages() const;
  bool holds_pages_of(Pools pools) const;
  // Adds the pages of these pools that the caches hold, with how often.
  void count_pages_of(Pools pools, PageCounts* counts) const;
  void add_caches_of(const ModelPools& pools, std::vector<const SequenceCache*>* caches) const;

 private:
  AdapterId find_adapter(const SequenceCache& cache) const;

  const SequenceSpec* const spec_;
  LoopServices* const loop_;
  bool has_adapters_ = false;
  Caches caches_;
  absl::InlinedVector<std::pair<Role, Stage>, 2> stages_;  // of the spec's roles, in their order
  std::vector<CacheId> adopted_;  // caches with a leader's rows, before their first round
  std::vector<std::pair<ModelId, PrefixRoot>> roots_;  // one for each role
};

}  // namespace tandem
