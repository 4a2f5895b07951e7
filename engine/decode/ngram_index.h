// Drafts without a model: what followed the last time (prompt lookup).
//
// The longest suffix of the text, of at most max_n tokens, that occurs earlier in it is looked up;
// of several occurrences the most recent one counts, and what followed there is proposed.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/base/ids.h"

namespace tandem {

inline constexpr int kMaxNgram = 4;

// An index over a growing text. Each token is entered once, so a round costs what it adds to the
// text and not the length of it.
class NgramIndex {
 public:
  // max_n: in [1, kMaxNgram].
  explicit NgramIndex(int max_n) : max_n_(max_n) {}

  // `n` tokens, or none where no suffix of `text` occurs earlier. Where the copy reaches the end of
  // the text it goes on with what it has copied, so a loop is followed round and round.
  // REQUIRES: text starts with the text of the call before.
  std::vector<Token> propose(std::span<const Token> text, int n);

 private:
  using Gram = std::array<Token, kMaxNgram>;  // -1 in front of shorter ones
  static Gram last(std::span<const Token> text, int n);

  const int max_n_;
  size_t entered_ = 1;                       // tokens whose place behind a gram is known
  absl::flat_hash_map<Gram, size_t> after_;  // where the text went on after the gram, last time
};

}  // namespace tandem
