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

std::vector<Token> NgramIndex::propose(std::span<const Token> text, int n) {
  TANDEM_CHECK(text.size() + 1 >= entered_);
  // Only grams with a token behind them: the suffix of the text does not find itself.
  for (; entered_ < text.size(); ++entered_) {
    const int longest = std::min(max_n_, static_cast<int>(entered_));
    for (int k = 1; k <= longest; ++k) after_[last(text.first(entered_), k)] = entered_;
  }
  std::vector<Token> drafts;
  for (int k = std::min(max_n_, static_cast<int>(text.size())); k >= 1; --k) {
    const auto found = after_.find(last(text, k));
    if (found == after_.end()) continue;
    for (size_t i = found->second; static_cast<int>(drafts.size()) < n; ++i) {
      drafts.push_back(i < text.size() ? text[i] : drafts[i - text.size()]);
    }
    break;
  }
  return drafts;
}

}  // namespace tandem
