// Drafts by look-up: what followed the longest suffix of the text, in the request's own text or in
// the texts of earlier requests of its tenant.
#pragma once

#include <span>
#include <vector>

#include "engine/decode/gen.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/pacing/draft_acceptance.h"
#include "engine/decode/text_history.h"

namespace tandem {

// Drafts of a round that a short match has pages for.
inline constexpr int kShortLookup = 12;

class DraftLookup {
 public:
  // max_ngram: the longest suffix, in [1, kMaxNgram]. Earlier requests are looked up above
  // NgramIndex::kHashed.
  DraftLookup(Gen g, int max_ngram) : g_(g), max_ngram_(max_ngram), own_(max_ngram) {}

  // Of a round: enters new text, and looks up the suffix of seq().
  void begin_round();
  // Drafts that a round can have pages for, at most: 0 without a match, more after a longer one.
  int most() const;

  struct Draft {
    Token token = -1;
    // No tokens: none. Drafts that were copied with it count up to NgramIndex::kHashed tokens.
    Matched by;
  };
  // What may follow seq() and `tail`. Where the last token of `tail` is the last draft, the copy
  // continues, which takes constant time. REQUIRES: begin_round(), and no token was emitted since.
  Draft next(std::span<const Token> tail);
  // Up to `most` tokens that may follow seq().
  std::vector<Token> copy(int most);

 private:
  void search(std::span<const Token> tail);
  bool go_on(std::span<const Token> tail);
  Token at(size_t i, std::span<const Token> tail) const;
  Draft draft(std::span<const Token> tail) const;

  Gen g_;
  const int max_ngram_;
  NgramIndex own_;
  // The last answer of next(): it follows this many tokens. One of the two matches is set.
  size_t size_ = 0;
  NgramIndex::Match of_own_;
  TextHistory::Match of_history_;
  int first_ = 0;  // tokens of the match that began the round
};

// The number of leading `drafts`, behind seq(), up to one that would end the request. Drafts that a
// constraint bans do not count, nor those behind them.
size_t useful_drafts(Gen g, std::span<const Token> drafts);

}  // namespace tandem
