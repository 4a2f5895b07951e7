// The vocabulary ids among which tokens are drafted.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/pass/pass.h"

namespace tandem {

// Warp::vocab of drafts with ids below `draft_vocabulary` (0: all). At least one id more than the
// request may ban.
int draft_ids(const Warp& warp, int draft_vocabulary);

// The warp of a small model's drafts: ids below a limit, and those of the request's text beyond it,
// at most the kMost that occurred last. Names and rare words are often repeated.
class DraftWarp {
 public:
  static constexpr size_t kMost = 256;

  // draft_vocabulary: 0: all ids. text_ids: false: none of the text
  DraftWarp(const Warp& warp, int draft_vocabulary, bool text_ids);

  // The cache's first row is token `first` of the text. Processors then count the prompt's tokens
  // from there. REQUIRES: the prompt has at least `first` tokens.
  void begin_at(int first);

  // Of drafts behind `text`, the prompt and the answer so far. REQUIRES: it begins with the text of
  // the call before.
  const Warp& behind(const std::vector<Token>& text);

 private:
  Warp warp_;
  const int end_;  // of the request's ids; 0: unknown
  const bool text_ids_;
  size_t read_ = 0;            // tokens of the text
  std::vector<Token> recent_;  // its ids from warp_.vocab on, the last one last
};

}  // namespace tandem
