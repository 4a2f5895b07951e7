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
#include "engine/sched/run_host.h"
#include "engine/sched/spec.h"

namespace tandem {

class CacheSet {
 public:
  // None yet; open() makes one for each role that does not share one. Both outlive it.
  CacheSet(const SequenceSpec* spec, RunHost* host);
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
  // Whose part a pass to layer `to` on this cache plays.
  Role role_of(const SequenceCache& cache, int to) const;
  // What its passes read and go through besides their rows. A fork's are those of its origin.
  struct Feed {
    CacheId memory;
    AdapterId adapter;
    Stage source;  // whose hidden rows the first `rows` rows are fed with; invalid cache: none
    RoleModel::Fed fed;
    int rows = 0;
    std::span<const int> beside;  // SequenceSpec::beside
  };
  Feed feed_of(const SequenceCache& cache) const { return is_fed_ ? fed(cache) : Feed(); }
  bool is_fed() const { return is_fed_; }  // any of them with anything
  // What a cache holds that runs other tokens than the sequence's (SequenceSpec::runs_apart), and
  // whether all its rows see each other; null: it runs the sequence's.
  const std::vector<Token>* apart(CacheId id) const;
  bool encodes(CacheId id) const;
  // Do its rows come by running the sequence's tokens? Workers' and encoders' do not.
  bool runs_tokens(CacheId id) const;
  bool runs_tokens(size_t role) const;  // likewise, of an index into SequenceSpec::roles

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
  bool forget_taken_over(CacheId id) { return std::erase(taken_over_, id) > 0; }

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
  Feed fed(const SequenceCache& cache) const;
  const RoleModel* role_with(CacheId id) const;  // the first; null: it is a fork

  const SequenceSpec* const spec_;
  RunHost* const host_;
  bool is_fed_ = false;  // has any role a memory, an adapter or a source of hidden rows?
  Caches caches_;
  absl::InlinedVector<std::pair<Role, Stage>, 2> stages_;  // of the spec's roles, in their order
  std::vector<CacheId> taken_over_;  // caches with a leader's rows, before their first round
  std::vector<std::pair<ModelId, PrefixRoot>> roots_;  // one for each role
};

}  // namespace tandem
