// Reserves what a round of a sequence needs in all its caches: everything or nothing.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/cache/sequence_cache.h"
#include "engine/decode/gen.h"
#include "engine/sched/cache_set.h"
#include "engine/sched/loop_services.h"
#include "engine/sched/requirements.h"

namespace tandem {

class Conditioning;

class Reservation {
 public:
  // `conditioning` may be null. Both outlive it.
  explicit Reservation(CacheSet* caches, Conditioning* conditioning = nullptr)
      : caches_(caches), conditioning_(conditioning) {}

  // Ends the last round of a sequence with these final tokens: what it reserved and did not use is
  // released, and full pages become known to the prefix caches. The new round requires `needs`.
  void begin_round(std::span<const Need> needs, std::span<const Token> tokens);
  // Fills empty caches with the rows that the prefix caches have. Rows of a page that is shared in
  // part are borrowed if the round can then be granted.
  void adopt(std::span<const Token> tokens);
  // `lacking`: receives the pools without enough free pages.
  bool can_grant(std::vector<const PagePool*>* lacking = nullptr) const;
  void grant(LoopServices* loop);
  // The caches were emptied, so the waiting round requires more.
  void preempted();
  // The first row of a cache that the granted round may leave between two layers.
  int frontier_begin(CacheId cache) const;

  // For placing a sequence without caches: `pools` is the candidate model's, `role` an index into
  // SequenceSpec::roles().
  // The KV pages that `tokens` and one more row need, less those that adopt() would share with
  // other owners.
  int64_t first_pages(size_t role, const ModelPools& pools, std::span<const Token> tokens) const;
  // The rows that adopt() would find.
  int64_t known_rows(size_t role, const ModelPools& pools, std::span<const Token> tokens) const;

 private:
  // The steps of begin_round().
  void require(std::span<const Need> needs);
  void drop_adopted_rows();
  void commit(std::span<const Token> tokens);
  bool shares_prefixes(size_t role, const ModelPools& pools) const;
  std::vector<PageId> known_pages(size_t role, const ModelPools& pools,
                                  std::span<const Token> tokens) const;
  static PageNeed need_of(const CacheRequirement& required);

  CacheSet* const caches_;
  Conditioning* const conditioning_;
  Requirements required_;
  std::vector<std::pair<CacheId, int>> frontier_begin_;  // of the granted round
};

}  // namespace tandem
