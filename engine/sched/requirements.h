// What a round needs of each cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "engine/cache/sequence_cache.h"

namespace tandem {

// Of one cache: capacity for `rows` rows in all, and for the hidden states of rows
// [frontier_begin, frontier_end) that have not done layers [0, frontier_to). Totals, so they stay
// valid when preemption empties the cache.
struct CacheRequirement {
  static constexpr int kAny = std::numeric_limits<int>::max();

  SequenceCache* cache;
  int rows = 0;
  int frontier_to;
  int frontier_begin = kAny;
  int frontier_end = 0;               // 0: none
  int values = 0;                     // hidden rows that its passes leave for a conditioned cache
  int adoptable = kAny;               // leading rows that the prefix cache may provide
  int adopted = 0;                    // of these, provided
  std::optional<uint64_t> looked_up;  // the version of the prefix index at the last look-up
};

// All requirements of a round: one for each cache.
class Requirements {
 public:
  void clear() { all_.clear(); }
  // The cache's requirement, which is empty at first. Invalidates earlier references.
  CacheRequirement& of(SequenceCache* cache) {
    const auto known = std::ranges::find(all_, cache, &CacheRequirement::cache);
    if (known != all_.end()) return *known;  // early exit: two stages of one cache
    CacheRequirement& fresh = all_.emplace_back();
    fresh.cache = cache;
    fresh.frontier_to = cache->pools()->layers;
    return fresh;
  }
  size_t size() const { return all_.size(); }
  CacheRequirement& operator[](size_t i) { return all_[i]; }
  auto begin() { return all_.begin(); }
  auto end() { return all_.end(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<CacheRequirement> all_;
};

}  // namespace tandem
