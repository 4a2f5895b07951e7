#include "engine/cache/prefix_index.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"

namespace tandem {
namespace {

// The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t PrefixIndex::hash(uint64_t before, std::span<const Token> tokens) {
  uint64_t h = mixed(before);
  for (const Token t : tokens) h = mixed(h ^ static_cast<uint32_t>(t));
  return h;
}

PrefixIndex::PrefixIndex(PagePool* pool, int page_rows, Hash hash)
    : pool_(pool),
      page_rows_(static_cast<size_t>(page_rows)),
      hash_(hash),
      nodes_(static_cast<size_t>(pool->total())),
      buckets_(std::bit_ceil(nodes_.size() + 1)) {}

PrefixIndex::~PrefixIndex() {
  if (listener_ == nullptr) return;
  for (const auto& node : nodes_) {
    if (node != nullptr && *node->root == PrefixRoot()) listener_->on_removed(model_, id_of(*node));
  }
}

void PrefixIndex::listen(PrefixListener* listener, std::string model, uint16_t instance) {
  listener_ = listener;
  model_ = std::move(model);
  instance_ = instance;
}

uint64_t PrefixIndex::id_of(const Node& node) const {
  if (node.number == 0) return 0;
  return (uint64_t{instance_} << 48) | node.number;
}

const PrefixIndex::Node* PrefixIndex::root_of(const PrefixRoot& root) const {
  const auto it = roots_.find(root);
  return it == roots_.end() ? nullptr : &it->second;
}

PrefixIndex::Node* PrefixIndex::child(const Node* before, uint64_t hash,
                                      std::span<const Token> tokens) const {
  Node* node = bucket(hash);
  while (node && !(node->hash == hash && node->before == before &&
                   std::ranges::equal(node->tokens, tokens))) {
    node = node->next;
  }
  return node;
}

std::vector<PageId> PrefixIndex::find(const PrefixRoot& root, std::span<const Token> tokens,
                                      size_t most) const {
  std::vector<PageId> pages;
  const Node* node = root_of(root);
  most = std::min(most, tokens.size() / page_rows_);
  while (node && pages.size() < most) {
    const auto rows = tokens.subspan(pages.size() * page_rows_, page_rows_);
    node = child(node, hash_(node->hash, rows), rows);
    if (node) pages.push_back(node->page);
  }
  return pages;
}

PrefixIndex::Beginning PrefixIndex::find_beginning(const PrefixRoot& root, PageId before,
                                                   std::span<const Token> tokens,
                                                   const std::string& writer) const {
  const Node* const parent = before.valid() ? nodes_[before.index()].get() : root_of(root);
  const Node* node = parent ? parent->first : nullptr;  // newest first
  Beginning best{{}, static_cast<int>(page_rows_ / 4) - 1};
  for (int i = 0; node && i < kMostSiblings; node = node->right, ++i) {
    if (node->writer != writer) continue;
    const auto different = std::ranges::mismatch(tokens, node->tokens).in1;
    const auto rows = static_cast<int>(different - tokens.begin());
    if (rows > best.rows && rows > 0) best = {node->page, rows};
  }
  return best.page.valid() ? best : Beginning();
}

PageId PrefixIndex::insert(const PrefixRoot& root, PageId before, std::span<const Token> tokens,
                           PageId page, const std::string& writer) {
  TANDEM_CHECK(tokens.size() == page_rows_ && !knows(page));
  Node* parent = nullptr;
  if (before.valid()) {
    parent = nodes_[before.index()].get();
    if (!parent) return {};
    TANDEM_CHECK(*parent->root == root);
  } else {
    const auto [it, fresh] = roots_.try_emplace(root);
    parent = &it->second;
    if (fresh) {
      parent->root = &it->first;
      // Random, so that clients cannot construct prompts that collide.
      TANDEM_CHECK(getentropy(&parent->hash, sizeof(parent->hash)) == 0);
    }
  }
  const uint64_t hash = hash_(parent->hash, tokens);
  if (const Node* known = child(parent, hash, tokens)) return known->page;
  auto node = std::make_unique<Node>();
  node->page = page;
  node->number = ++numbers_;
  node->hash = hash;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->writer = writer;
  node->root = parent->root;
  node->before = parent;
  node->right = parent->first;
  if (parent->first) parent->first->left = node.get();
  parent->first = node.get();
  node->next = std::exchange(bucket(hash), node.get());
  if (listener_ != nullptr && root == PrefixRoot()) {
    listener_->on_stored(model_, {id_of(*node), id_of(*parent), node->tokens});
  }
  nodes_[page.index()] = std::move(node);
  ++known_;
  pool_->add_to_index(page, root.salt);
  ++version_;
  return page;
}

void PrefixIndex::use(std::span<const PageId> chain) {
  ++uses_;
  for (const PageId page : chain) nodes_[page.index()]->used = uses_;
}

bool PrefixIndex::knows(const Name& name) const {
  const Node* const node = nodes_[name.page.index()].get();
  return node != nullptr && node->number == name.number;
}

std::vector<PrefixIndex::SharedPage> PrefixIndex::shared(size_t most) const {
  // Each after its predecessor, which was not used before it.
  struct Found {
    const Node* node;
    size_t place;
  };
  std::vector<Found> found;
  const Node* const root = root_of(PrefixRoot());
  std::vector<const Node*> open;
  if (root != nullptr) open.push_back(root);
  while (!open.empty()) {
    const Node* const at = open.back();
    open.pop_back();
    if (at != root) found.push_back({at, found.size()});
    for (const Node* n = at->first; n != nullptr; n = n->right) {
      if (n->used > 0) open.push_back(n);
    }
  }
  std::ranges::sort(found, [](const Found& a, const Found& b) {
    return a.node->used != b.node->used ? a.node->used > b.node->used : a.place < b.place;
  });
  if (found.size() > most) found.resize(most);
  std::unordered_map<const Node*, int> places;
  std::vector<SharedPage> pages;
  for (const Found& f : found) {
    const auto before = places.find(f.node->before);
    places.emplace(f.node, static_cast<int>(pages.size()));
    pages.push_back({{f.node->page, f.node->number},
                     before == places.end() ? -1 : before->second,
                     f.node->tokens});
  }
  return pages;
}

void PrefixIndex::unlink(Node* node) {
  if (node->left) {
    node->left->right = node->right;
  } else {
    node->before->first = node->right;
  }
  if (node->right) node->right->left = node->left;
  Node** at = &bucket(node->hash);
  while (*at != node) at = &(*at)->next;
  *at = node->next;
}

void PrefixIndex::forget(Node* node, std::vector<PageId>* freed) {
  Node* const before = node->before;
  // Removes leaves first. Not recursive: chains may be as long as contexts.
  for (Node* at = node; at != before;) {
    if (at->first) {
      at = at->first;
      continue;
    }
    Node* const up = at->before;
    const PageId page = at->page;
    unlink(at);
    if (listener_ != nullptr && *at->root == PrefixRoot())
      listener_->on_removed(model_, id_of(*at));
    nodes_[page.index()].reset();
    --known_;
    if (pool_->remove_from_index(page)) freed->push_back(page);
    ++version_;
    at = up;
  }
  if (!before->page.valid() && !before->first) roots_.erase(roots_.find(*before->root));
}

void PrefixIndex::forget(PageId page, std::vector<PageId>* freed) {
  Node* const node = nodes_[page.index()].get();
  TANDEM_CHECK(node);
  forget(node, freed);
}

void PrefixIndex::evict(const std::string& client, std::vector<PageId>* freed) {
  forget(pool_->evicted_for(client), freed);
}

void PrefixIndex::forget_lora(LoraId lora, std::vector<PageId>* freed) {
  std::vector<PrefixRoot> roots;
  for (const auto& [root, node] : roots_) {
    if (root.lora == lora) roots.push_back(root);
  }
  for (const PrefixRoot& root : roots) {
    for (auto it = roots_.find(root); it != roots_.end(); it = roots_.find(root)) {
      forget(it->second.first, freed);
    }
  }
}

void PrefixIndex::clear(std::vector<PageId>* freed) {
  while (!roots_.empty()) forget(roots_.begin()->second.first, freed);
}

std::vector<PageId> PrefixIndex::pages() const {
  std::vector<PageId> pages;
  for (const auto& node : nodes_) {
    if (node) pages.push_back(node->page);
  }
  return pages;
}

std::string PrefixIndex::check() const {
  size_t reached = 0;
  std::vector<const Node*> open;
  for (const auto& [root, node] : roots_) {
    if (!node.first) return "a root without pages";
    if (node.root != &root) return "a root of another name";
    open.push_back(&node);
  }
  while (!open.empty()) {
    const Node* at = open.back();
    open.pop_back();
    const Node* left = nullptr;
    for (const Node* n = at->first; n; left = n, n = n->right) {
      const std::string page = "page " + std::to_string(n->page.value);
      if (n->left != left || n->before != at || n->root != at->root) return page + ": a bad link";
      if (!pool_->indexed(n->page)) return page + ": indexed here, but not in the pool";
      if (child(at, hash_(at->hash, n->tokens), n->tokens) != n) return page + ": is not found";
      if (nodes_[n->page.index()].get() != n) return page + ": not among the pages";
      ++reached;
      open.push_back(n);
    }
  }
  if (reached != known_ || pages().size() != known_) return "pages that hang on no root";
  size_t hashed = 0;
  for (const Node* n : buckets_) {
    for (; n; n = n->next) ++hashed;
  }
  if (hashed != known_) return "more hashes than pages";
  return "";
}

}  // namespace tandem
