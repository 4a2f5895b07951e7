// Prompt lookup: finds the longest suffix of the text, of at most max_n tokens, that occurs earlier
// in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/base/ids.h"

namespace tandem {

inline constexpr int kMaxNgram = 64;

// An index over a growing text. Each token is entered once. The initial text is entered in slices,
// its end first. So advance() costs the tokens added since the last call and one slice, for any
// prompt length; until all slices are entered, the oldest text is missing.
//
// Grams of up to kHashed tokens are hashed. Of longer suffixes, the last kCandidates places of
// their last kHashed tokens are compared.
class NgramIndex {
 public:
  static constexpr int kHashed = 4;
  static constexpr int kCandidates = 16;
  static constexpr size_t kSlice = 256;  // tokens of the initial text that a call enters

  // Memory of a token, about: kHashed grams, and its place.
  static constexpr int64_t kTokenBytes = 100;

  // max_n: in [1, kMaxNgram].
  explicit NgramIndex(int max_n) : max_n_(max_n), hashed_(max_n < kHashed ? max_n : kHashed) {}

  // REQUIRES: text begins with the text of the previous call.
  void advance(std::span<const Token> text);

  struct Match {
    size_t next = 0;  // the index of the token behind it
    int matched = 0;  // tokens; 0: none
  };
  // The longest suffix of `text` followed by `tail` in the entered text, the most recent one of
  // equal ones. `tail` is tentative: it is looked up but not entered. REQUIRES: text is that of
  // advance().
  Match find(std::span<const Token> text, std::span<const Token> tail) const;

  // advance(), and `n` tokens behind the match, or none. A copy that reaches the end of the text
  // continues with its own tokens, so loops repeat.
  std::vector<Token> propose(std::span<const Token> text, int n);

  size_t entered() const { return end_ - begin_; }  // tokens so far

 private:
  using Gram = uint64_t;  // a hash; a collision costs a draft
  // Positions behind a gram.
  struct Places {
    uint32_t last = 0, first = 0;  // 0: none, as no gram precedes token 0
  };
  // Of the last n tokens of `text` followed by `tail`.
  static Gram last(std::span<const Token> text, std::span<const Token> tail, int n);
  // Enters the grams that end before `at`. older: this text precedes the entered text.
  void enter(std::span<const Token> text, size_t at, bool older);

  const int max_n_, hashed_;
  size_t begin_ = 0, end_ = 0;  // tokens [begin, end) have been entered
  absl::flat_hash_map<Gram, Places> places_;
  // By position behind a gram of hashed_ tokens: the same of its occurrence before; 0: none.
  std::vector<uint32_t> before_;
};

}  // namespace tandem
