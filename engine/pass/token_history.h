// Tokens of a cache's rows and their counts, for penalties (Processors::counts_tokens()).
//
// A cache has one history, which outlives its passes. Every row is counted once: a work brings only
// the rows that works before it did not (Work::history), and truncation takes rows out again. So a
// pass costs its new rows, whatever the length of the text. Drafts count as ancestors of the rows
// behind them during their own pass only.
//
// Threading: the device updates the history while it runs a work of the cache. The loop truncates
// and copies it only while none is under way; it may call known() at any time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/base/ids.h"

namespace tandem {

// How often each token occurs on the path from a sequence's first row to one of its rows. The path
// is a stack, so a walk over a tree counts the trunk once.
class TokenCounts {
 public:
  struct Count {
    Token token;
    int all;     // occurrences on the path
    int output;  // of these, behind the prompt
  };

  // An empty path, whose rows [0, prompt_tokens) will be the prompt.
  void clear(int prompt_tokens);
  // Adds row rows(). t < 0: a row without a token, such as a mask.
  void push(Token t);
  void pop();

  int rows() const { return static_cast<int>(path_.size()); }
  int prompt_tokens() const { return prompt_tokens_; }
  // The tokens behind the prompt; negative: rows without a token.
  std::span<const Token> output() const {
    return std::span(path_).subspan(std::min(path_.size(), static_cast<size_t>(prompt_tokens_)));
  }
  std::span<const Count> counts() const { return counts_; }  // distinct tokens, by first occurrence
  int64_t updates() const { return updates_; }               // calls of push() and pop(), for tests

 private:
  int prompt_tokens_ = 0;
  int64_t updates_ = 0;
  std::vector<Token> path_;
  std::vector<Count> counts_;
  absl::flat_hash_map<Token, int32_t> index_;  // into counts_
};

class TokenHistory {
 public:
  TokenHistory() = default;
  TokenHistory(const TokenHistory& other);
  TokenHistory& operator=(const TokenHistory&) = delete;

  // The tokens of rows [0, known()) are here. Never too large for the loop: rows go only when it
  // truncates.
  int known() const { return known_.load(std::memory_order_relaxed); }

  // Device: sets the token of row known().
  void append(Token t);
  // REQUIRES: row < known().
  Token token(int row) const { return tokens_[static_cast<size_t>(row)]; }
  // Device: counts() becomes that of rows [0, rows). The caller may push rows on top, which the
  // next call takes away. REQUIRES: rows <= known().
  TokenCounts& count(int rows, int prompt_tokens);
  TokenCounts& counts() { return counts_; }

  // Loop: forgets rows from `rows` on.
  void truncate(int rows);

 private:
  void uncount(int rows);

  std::vector<Token> tokens_;   // by row
  std::atomic<int> known_ = 0;  // tokens_.size()
  int counted_ = 0;             // leading rows in counts_; pushed rows lie above
  TokenCounts counts_;
};

}  // namespace tandem
