// The caches of one sequence, and the roles that they play.
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
  // Empty until open(). Both outlive it.
  CacheSet(const SequenceSpec* spec, LoopServices* loop);
  void placed();  // the cast has changed to its replicas. REQUIRES: not open
  void open();    // creates a cache for each model
  // Releases all pages. REQUIRES: no pass is on a device.
  void close();

  // Inlined for the common case of one or two.
  using Caches = absl::InlinedVector<std::unique_ptr<SequenceCache>, 2>;
  // In order of creation, so ascending by id.
  const Caches& all() const { return caches_; }
  SequenceCache* find(CacheId id) const {  // REQUIRES: it exists
    size_t i = 0;
    while (i < caches_.size() && caches_[i]->id() != id) ++i;
    TANDEM_CHECK(i < caches_.size());
    return caches_[i].get();
  }
  SequenceCache* find_idle(CacheId id) const;  // REQUIRES: it exists and is idle
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
  // The adapter of a pass that adds these rows to the cache; invalid: none.
  AdapterId adapter_of(const SequenceCache& cache, const Tree& add) const {
    return has_adapters_ ? find_adapter(cache, add) : AdapterId();
  }
  // The LoRA adapter of all passes on the cache; invalid: none.
  LoraId lora_of(const SequenceCache& cache) const {
    return has_loras_ ? find_lora(cache) : LoraId();
  }
  // True: its rows are the sequence's tokens. False for workers, encoders and roles with tokens of
  // their own (SequenceSpec::runs_fixed_tokens), and for forks.
  bool runs_sequence(CacheId id) const;
  bool runs_sequence(size_t role) const;

  // Prefixes.
  // What rows of this model's cache depend on besides the sequence's tokens.
  const PrefixRoot& root(ModelId model) const;
  const PrefixRoot& root_of_role(size_t role) const { return roots_[role].second; }
  bool prefix_cache() const { return spec_->prefix_cache; }
  const std::string& writer() const { return spec_->client; }
  // Publishes the rows of `tokens`, the sequence's first final tokens. Busy caches are skipped,
  // unless the caches are not used again (`over`).
  void publish(std::span<const Token> tokens, bool over);
  // See SequenceRun::adopt.
  void adopt(const CacheSet& leader);
  // True, once, if the cache has adopted a leader's rows.
  bool take_adopted(CacheId id) { return !adopted_.empty() && std::erase(adopted_, id) > 0; }

  // Empties all caches.
  void clear();

  // Pages.
  using Pools = std::span<const PagePool* const>;
  using PageCounts = std::map<std::pair<const PagePool*, PageId>, int>;
  bool holds_pages() const;
  bool holds_pages_of(Pools pools) const;
  // Adds the pages of these pools that the caches hold, and their number of owners here.
  void count_pages_of(Pools pools, PageCounts* counts) const;
  void add_caches_of(const ModelPools& pools, std::vector<const SequenceCache*>* caches) const;

 private:
  AdapterId find_adapter(const SequenceCache& cache, const Tree& add) const;
  LoraId find_lora(const SequenceCache& cache) const;

  const SequenceSpec* const spec_;
  LoopServices* const loop_;
  bool has_adapters_ = false;
  bool has_loras_ = false;
  Caches caches_;
  absl::InlinedVector<std::pair<Role, Stage>, 2> stages_;  // by role
  std::vector<CacheId> adopted_;  // caches with a leader's rows, until their first round
  std::vector<std::pair<ModelId, PrefixRoot>> roots_;  // by role
};

}  // namespace tandem
