// The page pools of one model on one device, with its prefix index.
//
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

struct ModelPools {
  ModelPools(ModelId id, const ModelShape& shape, const PoolSize& size, std::vector<Move>* log,
             bool prefix_cache = true)  // `log` is the device's, shared by its models
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

  // A KV page with one owner, for `client` (the salt of its prefixes). Evicts a cached page if none
  // is free. REQUIRES: kv.available() > 0.
  PageId take_kv(const std::string& client);
  // Removes an owner or a pin. A page that becomes free is logged as Move::kFree.
  void release(Store store, PageId page);
  void unpin(Store store, PageId page);
  PagePool& of(Store store) {
    return store == Store::kKv ? kv : store == Store::kFrontier ? frontier : values;
  }
  // True: rows that a pass brings to layer `to` leave their hidden states in frontier pages.
  bool retains_hidden(int to) const { return to < layers || retains_top_hidden; }
  // Removes a page and its successors from the index.
  void forget_prefix(PageId page);
  // Removes the prefixes of a LoRA adapter that no sequence has any more.
  void forget_lora(LoraId lora);
  // Empties the index, so that cached pages become free.
  void drop_prefixes();

  // Recounts the owners of every page. `caches`: all that use these pools. Returns the first error;
  // empty: none. Slow: for tests and the simulation.
  std::string check(std::span<const SequenceCache* const> caches) const;

  ModelId model;
  int layers;
  int page_rows;
  bool retains_top_hidden;  // PoolSize::retains_top_hidden
  bool prefix_cache;        // sequences share pages by prefix
  PagePool kv;
  PagePool frontier;
  PagePool values;  // a page holds one hidden row
  PrefixIndex prefixes;
  std::vector<Move>* moves;

 private:
  void log_freed(Store store, PageId page);
};

}  // namespace tandem
