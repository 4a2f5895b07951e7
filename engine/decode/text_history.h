// The texts of earlier requests of a deployment, by tenant, for drafts by look-up.
//
// Tokens lie in blocks. A tenant has a list of blocks, and its oldest block goes first. If no block
// is free, the tenant with the most blocks loses one, so no tenant takes the share of another.
//
// Chains link the places that end the same gram of kGram tokens, the last one first. A chain may
// have other grams and tenants, whose hash is the same. So every place is compared with the text,
// and belongs to the tenant that asks, before it counts.
//
// The memory is constant: bytes_of(). Each call has bounded work. Loop thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

class TextHistory {
 public:
  static constexpr size_t kBlock = 256;    // tokens
  static constexpr size_t kSlice = 512;    // tokens that advance() enters, about
  static constexpr size_t kGram = 4;       // the shortest match
  static constexpr int kCandidates = 16;   // places of the same gram that are compared
  static constexpr int kLinks = 64;        // of a chain that a look-up follows
  static constexpr size_t kCompared = 64;  // tokens; the longest match
  static constexpr size_t kTenants = 256;  // of more, the least recently used one is forgotten

  // Keeps about `tokens` tokens; at least 1.
  explicit TextHistory(int64_t tokens);
  TextHistory(const TextHistory&) = delete;
  TextHistory& operator=(const TextHistory&) = delete;

  // Queues a text. Of a long one, the end. The oldest texts of the longest queue are dropped while
  // the queues exceed a quarter of the tokens.
  void add(const std::string& tenant, std::span<const Token> text);
  // Enters a slice of the tenant's queued texts, but for passages that it has already.
  void advance(const std::string& tenant);

  // A place whose next token continues a text.
  struct Match {
    size_t place = 0;
    uint64_t block = 0;  // the number of its block
    int matched = 0;     // tokens; 0: none
    Token token = -1;    // the next one
  };
  // The longest suffix of `text` followed by `tail` among the tenant's texts, the last entered one
  // of equal ones. It has [kGram, min(most, kCompared)] tokens.
  Match find(const std::string& tenant, std::span<const Token> text, std::span<const Token> tail,
             int most) const;
  // The match behind the next token. None: the text ends, or was evicted.
  Match behind(const Match& match) const;

  size_t capacity() const { return tokens_.size(); }
  size_t queued() const { return queued_; }
  size_t held(const std::string& tenant) const;  // tokens, in whole blocks
  size_t tenants() const { return tenants_.size(); }
  static int64_t bytes_of(int64_t tokens);
  // The first inconsistency; empty: none.
  std::string check() const;

 private:
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  static constexpr Token kEnd = -1;  // behind each passage

  struct Tenant {
    uint64_t id = 0;    // never used again
    uint64_t used = 0;  // the time of the last call
    size_t first = kNone, last = kNone, blocks = 0;
    std::deque<std::vector<Token>> queue;
    size_t queued = 0;  // tokens
    // Of the front of the queue.
    size_t done = 0;
    Match known;           // the known passage that it follows; not matched: none
    size_t known_for = 0;  // tokens up to `done` that were not written
    size_t passage = 0;    // tokens that were written since the last kEnd
  };
  struct Block {
    uint64_t number = 0;  // 0: free
    uint64_t tenant = 0;
    size_t used = 0;
    size_t before = kNone, after = kNone;
  };

  const Tenant* tenant_of(const std::string& name) const;
  Tenant& open(const std::string& name);
  void drop_queued(Tenant& tenant);
  void enter(Tenant& tenant);
  bool follow_known(Tenant& tenant, std::span<const Token> text);
  void end_passage(Tenant& tenant);
  void write(Tenant& tenant, std::span<const Token> tokens);
  void push(Tenant& tenant, Token token);
  void add_block(Tenant& tenant);
  void evict_from(Tenant& tenant);
  // Places around `place` in the tenant's list; kNone: none.
  size_t place_before(size_t place) const;
  size_t place_after(size_t place) const;
  Match at(size_t place, int matched) const;
  template <class At>
  Match find(const Tenant& tenant, size_t size, const At& token, size_t most) const;
  size_t bucket(uint64_t tenant, const std::array<Token, kGram>& gram) const;
  void link(size_t place, size_t bucket);
  void unlink(size_t place);

  static constexpr uint32_t kLast = uint32_t{1} << 31;  // and a bucket
  static constexpr uint32_t kUnlinked = ~uint32_t{0};

  std::vector<Token> tokens_;     // by place
  std::vector<uint32_t> before_;  // by place: the one before in its chain, plus 1; 0: none
  std::vector<uint32_t> after_;   // by place: the one after, plus 1; the last one: kLast
  std::vector<uint32_t> heads_;   // by bucket: the last place, plus 1; 0: none
  std::vector<Block> blocks_;
  std::vector<size_t> free_;
  std::map<std::string, Tenant> tenants_;
  size_t queued_ = 0;
  uint64_t ids_ = 0, numbers_ = 0, time_ = 0;
};

}  // namespace tandem
