#include "engine/decode/ngram_index.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem {

NgramIndex::Gram NgramIndex::last(std::span<const Token> text, int n) {
  Gram gram;
  gram.fill(-1);
  std::copy(text.end() - n, text.end(), gram.end() - n);
  return gram;
}

void NgramIndex::enter(std::span<const Token> text, size_t at, bool older) {
  const int longest = std::min(max_n_, static_cast<int>(at));
  for (int k = 1; k <= longest; ++k) {
    size_t& after = after_[last(text.first(at), k)];  // 0: absent, as no gram precedes token 0
    if (after == 0 || !older) after = at;
  }
}

NgramIndex::Gram NgramIndex::last(std::span<const Token> text, std::span<const Token> tail, int n) {
  const int of_tail = std::min(n, static_cast<int>(tail.size()));
  Gram gram = last(text, 0);
  std::copy(tail.end() - of_tail, tail.end(), gram.end() - of_tail);
  std::copy(text.end() - (n - of_tail), text.end(), gram.end() - n);
  return gram;
}

NgramIndex::Found NgramIndex::look_up(std::span<const Token> text, std::span<const Token> tail,
                                      int n) {
  TANDEM_CHECK(text.size() >= end_);
  if (end_ == 0) begin_ = end_ = text.size();
  // Only grams followed by a token, so that the suffix of the text does not find itself.
  for (; end_ < text.size(); ++end_) enter(text, end_, /*older=*/false);
  for (size_t i = 0; i < kSlice && begin_ > 0; ++i) enter(text, --begin_, /*older=*/true);
  Found result;
  std::vector<Token>& drafts = result.tokens;
  const size_t end = text.size() + tail.size();
  const auto at = [&](size_t i) {
    return i < text.size() ? text[i] : i < end ? tail[i - text.size()] : drafts[i - end];
  };
  for (int k = std::min(max_n_, static_cast<int>(end)); k >= 1; --k) {
    const auto found = after_.find(last(text, tail, k));
    if (found == after_.end()) continue;
    for (size_t i = found->second; static_cast<int>(drafts.size()) < n; ++i) {
      drafts.push_back(at(i));
    }
    result.matched = k;
    break;
  }
  return result;
}

}  // namespace tandem
