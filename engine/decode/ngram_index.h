// Prompt lookup: finds the longest suffix of the text, of at most max_n tokens, that occurs earlier
// in it, and proposes what followed its most recent occurrence.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/base/ids.h"

namespace tandem {

inline constexpr int kMaxNgram = 4;

// An index over a growing text. Each token is entered once. The initial text is entered in slices,
// its end first. So a call costs the tokens added since the last call and one slice, for any prompt
// length; until all slices are entered, the oldest text is missing.
class NgramIndex {
 public:
  // max_n: in [1, kMaxNgram].
  explicit NgramIndex(int max_n) : max_n_(max_n) {}

  static constexpr size_t kSlice = 256;  // tokens of the initial text that a call enters

  // `n` tokens, or none if no suffix of `text` occurs earlier in the entered text. A copy that
  // reaches the end of the text continues with its own tokens, so loops repeat. REQUIRES: text
  // begins with the text of the previous call.
  std::vector<Token> propose(std::span<const Token> text, int n) {
    return look_up(text, {}, n).tokens;
  }

  struct Found {
    std::vector<Token> tokens;
    int matched = 0;  // length of the suffix; 0: none
  };
  // The same for `text` followed by `tail`, which is tentative: it is looked up but not entered.
  Found look_up(std::span<const Token> text, std::span<const Token> tail, int n);

  size_t entered() const { return end_ - begin_; }  // tokens so far

 private:
  using Gram = std::array<Token, kMaxNgram>;  // shorter ones begin with -1
  static Gram last(std::span<const Token> text, int n);
  // Of `text` followed by `tail`.
  static Gram last(std::span<const Token> text, std::span<const Token> tail, int n);
  // Enters the grams that end before `at`. older: this text precedes the entered text.
  void enter(std::span<const Token> text, size_t at, bool older);

  const int max_n_;
  size_t begin_ = 0, end_ = 0;               // tokens [begin, end) have been entered
  absl::flat_hash_map<Gram, size_t> after_;  // position behind the gram's last occurrence
};

}  // namespace tandem
