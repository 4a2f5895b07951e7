// The pools of one model on one device, with what is known of pages that nobody uses any more.
// Not thread-safe: on the loop only.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/prefix_index.h"
#include "engine/pass/backend.h"

namespace tandem {

class SequenceCache;

// `moves` is the device's log, shared by its models.
struct ModelPools {
  ModelPools(ModelId id, const ModelShape& shape, const PoolSize& size, std::vector<Move>* log,
             bool prefix_cache = true)
      : model(id),
        layers(shape.layers),
        page_rows(size.page_rows),
        retains_top_hidden(size.retains_top_hidden),
        prefix_cache(prefix_cache),
        kv(size.pages),
        frontier(size.frontier_pages),
        values(size.values),
        prefixes(&kv, size.page_rows),
        moves(log) {}

  // A KV page with one owner; a cached one is given up for it when none is free.
  // REQUIRES: kv.available() > 0.
  PageId take_kv();
  // One owner less. A page that comes free says so in the log.
  void release(Store store, PageId page);
  void unpin(Store store, PageId page);  // likewise
  PagePool& of(Store store) {
    return store == Store::kKv ? kv : store == Store::kFrontier ? frontier : values;
  }
  // Do rows that have come to layer `to` leave their hidden states in frontier pages?
  bool retains_hidden(int to) const { return to < layers || retains_top_hidden; }
  void forget_prefix(PageId page);  // and those behind it
  // Gives up all cached pages, and forgets those that are used.
  void drop_prefixes();

  // Recounts the owners of every page. `caches`: all of these pools. Returns what is wrong; empty:
  // nothing. For tests and the simulation: it looks at every page.
  std::string check(std::span<const SequenceCache* const> caches) const;

  ModelId model;
  int layers;
  int page_rows;
  bool retains_top_hidden;  // PoolSize::retains_top_hidden
  bool prefix_cache;        // do sequences leave pages to others and take theirs?
  PagePool kv;
  PagePool frontier;
  PagePool values;  // of one row each
  PrefixIndex prefixes;
  std::vector<Move>* moves;

 private:
  void log_freed(Store store, PageId page);
};

}  // namespace tandem
