// The prefix cache: full pages, indexed by the inputs of their rows and of all earlier rows, so
// that sequences with the same prefix share them.
//
// The index is a tree. The key of a page is its predecessor and its rows' tokens. Lookups use a
// hash that is chained along the path, then compare the predecessor and every token, so hash
// collisions never give a wrong page. Everything else that a page's content depends on is in the
// root of its chain. Model, layer range, dtype and device are not part of a key: each pool has its
// own index.
//
// The index is an owner of its pages (PagePool::add_to_index). Pages without other owners are
// evicted when the pool needs them, in the order of PagePool::evicted_for(). Sequences release
// their pages from the end, so chains shrink from their ends. If a page is evicted before its
// successors (a fork may own those), they are removed with it.
//
// Not thread-safe: on the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/prefix_listener.h"

namespace tandem {

// What the rows of a chain depend on besides their tokens. Chains of different roots share nothing.
struct PrefixRoot {
  std::string salt;    // of one client, or empty
  AdapterId adapter;   // of the inputs; invalid: none
  LoraId lora;         // of the layers; invalid: none
  std::string source;  // memories and conditioning (prefix_dependencies()); empty: none
  friend auto operator<=>(const PrefixRoot&, const PrefixRoot&) = default;
};

class PrefixIndex {
 public:
  // The hash of a page, from the hash of its predecessors and its tokens. Tests use weak ones.
  using Hash = uint64_t (*)(uint64_t before, std::span<const Token> tokens);
  static uint64_t hash(uint64_t before, std::span<const Token> tokens);

  // Pages of `pool`, each with `page_rows` rows.
  PrefixIndex(PagePool* pool, int page_rows, Hash hash = &PrefixIndex::hash);
  ~PrefixIndex();
  // Calls `listener` (outlives this; may be null) from now on. The ids of pages contain `instance`.
  void listen(PrefixListener* listener, std::string model, uint16_t instance);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The longest indexed chain for a prefix of `tokens`, at most `most` pages. The caller must
  // become an owner of the pages before the pool is used again.
  std::vector<PageId> find(const PrefixRoot& root, std::span<const Token> tokens,
                           size_t most) const;
  // Among the newest kMostSiblings pages after page `before` (invalid: among first pages), the one
  // of this writer that begins with the most of `tokens`. Pages of others do not count: in a shared
  // cache, a client could find out their texts token by token. No rows: none has a quarter of a
  // page of them, for which a copy is worth it.
  struct Beginning {
    PageId page;
    int rows = 0;
  };
  static constexpr int kMostSiblings = 64;
  Beginning find_beginning(const PrefixRoot& root, PageId before, std::span<const Token> tokens,
                           const std::string& writer) const;
  // Adds `page`, whose rows hold `tokens` after the rows of page `before` (invalid: it is the
  // first). Returns the indexed page for these rows: `page`, or one that was there before. Invalid:
  // `before` is not indexed. `writer`: the client that sent the tokens. REQUIRES: `page` has an
  // owner and is not indexed.
  PageId insert(const PrefixRoot& root, PageId before, std::span<const Token> tokens, PageId page,
                const std::string& writer = "");
  bool knows(PageId page) const { return pool_->indexed(page); }

  // Sequences other than those that filled the pages of a chain use it: its pages are shared.
  // REQUIRES: knows() all of them; a page's predecessors are in this chain, or in one used since.
  void use(std::span<const PageId> chain);
  // An indexed page. The number differs from that of all other pages and times.
  struct Name {
    PageId page;
    uint64_t number = 0;
    friend bool operator==(const Name&, const Name&) = default;
  };
  bool knows(const Name& name) const;
  struct SharedPage {
    Name name;
    int before = -1;  // the index of its predecessor in the list; -1: none
    std::vector<Token> tokens;
  };
  // Shared pages whose content depends only on their tokens (PrefixRoot{}), each after its
  // predecessor. At most `most`: the last used ones, last used first.
  std::vector<SharedPage> shared(size_t most) const;

  // Removes a cached page for one that `client` needs (PagePool::evicted_for()), and its
  // successors. Adds the pages that become free to `freed`: at least that page. REQUIRES:
  // pool.cached() > 0.
  void evict(const std::string& client, std::vector<PageId>* freed);
  // Removes a page and its successors. REQUIRES: knows(page).
  void forget(PageId page, std::vector<PageId>* freed);
  // Removes all chains of this LoRA adapter.
  void forget_lora(LoraId lora, std::vector<PageId>* freed);
  void clear(std::vector<PageId>* freed);

  size_t size() const { return known_; }  // pages
  // Changes whenever a page is added or removed.
  uint64_t version() const { return version_; }
  std::vector<PageId> pages() const;
  // The first inconsistency of the tree; empty: none.
  std::string check() const;

 private:
  struct Node {
    PageId page;        // invalid: a root
    uint64_t hash = 0;  // of its tokens and all earlier ones
    uint64_t number = 0;
    uint64_t used = 0;  // the time of the last use(); 0: none
    std::vector<Token> tokens;
    std::string writer;
    const PrefixRoot* root = nullptr;
    Node* before = nullptr;                  // null: a root
    Node* first = nullptr;                   // successor
    Node *left = nullptr, *right = nullptr;  // siblings
    Node* next = nullptr;                    // in its bucket
  };
  Node*& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  Node* bucket(uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }
  const Node* root_of(const PrefixRoot& root) const;
  Node* child(const Node* before, uint64_t hash, std::span<const Token> tokens) const;
  void unlink(Node* node);
  uint64_t id_of(const Node& node) const;  // StoredPage::id; 0: a root
  void forget(Node* node, std::vector<PageId>* freed);

  PagePool* const pool_;
  const size_t page_rows_;
  const Hash hash_;
  PrefixListener* listener_ = nullptr;  // may be null
  std::string model_;
  uint16_t instance_ = 0;
  std::map<PrefixRoot, Node> roots_;          // all have pages
  std::vector<std::unique_ptr<Node>> nodes_;  // by page; null: not indexed
  std::vector<Node*> buckets_;                // by hash: a power of two, at least one for each page
  size_t known_ = 0;
  uint64_t version_ = 0;
  uint64_t numbers_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace tandem
