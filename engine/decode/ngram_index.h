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

// An index over a growing text. Each token is entered once, and the text that is there at first in
// slices, its end first: so a round costs what the round before it added to the text and one slice,
// however long a prompt is, and as long as some of it is missing that is the oldest part.
class NgramIndex {
 public:
  // max_n: in [1, kMaxNgram].
  explicit NgramIndex(int max_n) : max_n_(max_n) {}

  static constexpr size_t kSlice = 256;  // tokens of the first text that a call enters

  // `n` tokens, or none where no suffix of `text` occurs earlier in what has been entered. Where
  // the copy reaches the end of the text it goes on with what it has copied, so a loop is followed
  // round and round. REQUIRES: text starts with the text of the call before.
  std::vector<Token> propose(std::span<const Token> text, int n) {
    return look_up(text, {}, n).tokens;
  }

  struct Found {
    std::vector<Token> tokens;
    int matched = 0;  // of the suffix; 0: nothing
  };
  // The same of `text` and `tail`, which is tentative: it is looked up and not entered.
  Found look_up(std::span<const Token> text, std::span<const Token> tail, int n);

  size_t entered() const { return end_ - begin_; }  // tokens so far

 private:
  using Gram = std::array<Token, kMaxNgram>;  // -1 in front of shorter ones
  static Gram last(std::span<const Token> text, int n);
  // Of the two in a row.
  static Gram last(std::span<const Token> text, std::span<const Token> tail, int n);
  // Enters what stands before `at`; `older`: than what is there already.
  void enter(std::span<const Token> text, size_t at, bool older);

  const int max_n_;
  size_t begin_ = 0,
         end_ = 0;  // tokens [begin, end) are known to stand behind the grams before them
  absl::flat_hash_map<Gram, size_t> after_;  // where the text went on after the gram, last time
};

}  // namespace tandem
