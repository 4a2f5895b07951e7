// Full pages by the inputs of their rows and of all rows before, so that another sequence with the
// same beginning takes them over instead of computing them again.
//
// A page is known by its place in a tree: by the page before it, and by its own rows' tokens. The
// lookup goes by a hash that is chained along the path, but what it finds is compared, the parent
// by identity and the tokens one by one, so a collision costs time and never an answer: four bytes
// a row are nothing beside the row's keys and values. What else a page's content depends on is the
// root that its chain hangs on. Model, layer range, dtype and device need no place in a key: there
// is an index per pool.
//
// The index owns the pages that it knows (PagePool::keep). Pages that nobody else owns are given up
// when the pool needs them, the one that has been so for longest first. Sequences give pages back
// from their end on, so a page is older than those before it and chains shrink from their ends;
// should a page go before its successors (a sibling fork may own those alone), they go with it.
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

namespace tandem {

// What the rows of a chain depend on besides their tokens.
struct PrefixRoot {
  std::string salt;    // chains of different salts never meet: a client's own, or empty
  AdapterId adapter;   // through which inputs went; invalid: none
  std::string source;  // digest of what was embedded instead of tokens; empty: nothing
  friend auto operator<=>(const PrefixRoot&, const PrefixRoot&) = default;
};

class PrefixIndex {
 public:
  // Of a page: its tokens, and the hash of the pages before. Tests bring bad ones.
  using Hash = uint64_t (*)(uint64_t before, std::span<const Token> tokens);
  static uint64_t hash(uint64_t before, std::span<const Token> tokens);

  // Pages of `pool`, each with `page_rows` rows.
  PrefixIndex(PagePool* pool, int page_rows, Hash hash = &PrefixIndex::hash);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The pages that hold the first k * page_rows of `tokens`: as many as are known, `most` at most.
  // The caller becomes an owner of those that it uses before anything else happens.
  std::vector<PageId> find(const PrefixRoot& root, std::span<const Token> tokens,
                           size_t most) const;
  // `page` holds `tokens` behind the rows of page `before` (invalid: it is the first). Returns the
  // page under which these rows are known from here on: `page`, or one that was known before it.
  // Invalid: `before` itself is not known. REQUIRES: `page` has an owner and is not known.
  PageId insert(const PrefixRoot& root, PageId before, std::span<const Token> tokens, PageId page);
  bool knows(PageId page) const { return pool_->kept(page); }

  // Forgets the page that has been cached for longest, and those behind it. The ones that are free
  // now are added to `freed`: at least that page. REQUIRES: pool.cached() > 0.
  void give_up(std::vector<PageId>* freed);
  // Forgets a page and those behind it. REQUIRES: knows(page).
  void forget(PageId page, std::vector<PageId>* freed);
  void clear(std::vector<PageId>* freed);  // forgets all

  size_t size() const { return known_; }  // pages
  // Changes with every page that becomes known or is forgotten.
  uint64_t version() const { return version_; }
  std::vector<PageId> pages() const;
  // What is wrong with the tree; empty: nothing.
  std::string check() const;

 private:
  struct Node {
    PageId page;        // invalid: a root
    uint64_t hash = 0;  // of its tokens and all before
    std::vector<Token> tokens;
    const PrefixRoot* root = nullptr;
    Node* before = nullptr;                  // a root has none
    Node* first = nullptr;                   // of those behind it
    Node *left = nullptr, *right = nullptr;  // siblings
    Node* next = nullptr;                    // in its bucket
  };
  Node*& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  Node* bucket(uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }
  const Node* root_of(const PrefixRoot& root) const;
  Node* child(const Node* before, uint64_t hash, std::span<const Token> tokens) const;
  void unlink(Node* node);
  void forget(Node* node, std::vector<PageId>* freed);

  PagePool* const pool_;
  const size_t page_rows_;
  const Hash hash_;
  std::map<PrefixRoot, Node> roots_;          // those with pages
  std::vector<std::unique_ptr<Node>> nodes_;  // by page; null: not known
  std::vector<Node*> buckets_;                // by hash: a power of two, at least one for each page
  size_t known_ = 0;
  uint64_t version_ = 0;
};

}  // namespace tandem
