// What a round of a sequence wants of its caches, and how it comes to it: all or nothing.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/cache/sequence_cache.h"
#include "engine/decode/gen.h"
#include "engine/sched/cache_set.h"
#include "engine/sched/run_host.h"

namespace tandem {

class Reservation {
 public:
  explicit Reservation(CacheSet* caches) : caches_(caches) {}

  // A new round, of a sequence with these final tokens, wants room for `needs`; what the last one
  // took and did not use goes back.
  void want(std::span<const Need> needs, std::span<const Token> tokens);
  // Takes over what the prefix caches know of what is wanted, into empty caches.
  void adopt(std::span<const Token> tokens);
  // `lacking`: gets the pools that are short.
  bool can_grant(std::vector<const PagePool*>* lacking = nullptr) const;
  void grant(RunHost* host);
  // The caches were emptied: what is wanted is more now.
  void evicted();
  // Rows [first, end) of this cache leave hidden rows in the granted round, which another one is
  // fed with.
  struct Feeding {
    CacheId source;
    int first = 0, end = 0;
    int at = 0;  // layers
  };
  // Of passes on `source`; null: nobody is fed with their rows.
  const Feeding* feeding(CacheId source) const;
  // Of this cache: the first row for which the granted round has room between two layers.
  int frontier_begin(CacheId cache) const;

  // Of a sequence that has no caches yet, if the role (an index into SequenceSpec::roles) were
  // played by the model of `pools`:
  // KV pages that `tokens` and one more row need, less those that adopt() would find in use by
  // others;
  int64_t first_pages(size_t role, const ModelPools& pools, std::span<const Token> tokens) const;
  // rows that adopt() would find.
  int64_t known_rows(size_t role, const ModelPools& pools, std::span<const Token> tokens) const;

 private:
  std::vector<PageId> known_pages(size_t role, const ModelPools& pools,
                                  std::span<const Token> tokens) const;

  // Of one cache: `total` rows, and room for hidden states of the rows from frontier_begin to
  // frontier_total that have not come to frontier_to. Totals, so they stay right when an eviction
  // empties a cache.
  struct Want {
    SequenceCache* cache;
    int total;
    int frontier_to;
    int frontier_begin;
    int frontier_total;  // 0: none
    int hidden;          // rows that passes leave, as the method knows
    int fed = 0;         // rows that they leave for a cache that is fed with them
    int adoptable;       // rows that may come from the prefix cache, where the cache is empty
    int adopted = 0;
    std::optional<uint64_t> looked_up;  // what version of the index
  };
  Want& want_of(SequenceCache* cache);
  void want_memories(std::span<const Need> needs);
  void want_sources();
  static PageNeed need_of(const Want& want);

  CacheSet* const caches_;
  std::vector<Want> wants_;
  std::vector<Feeding> feeding_;
  std::vector<std::pair<CacheId, int>> frontier_begin_;  // of the granted round
};

}  // namespace tandem
