#include "engine/decode/ngram_index.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem {

NgramIndex::Gram NgramIndex::last(std::span<const Token> text, std::span<const Token> tail, int n) {
  uint64_t hash = static_cast<uint64_t>(n) * 0x9e3779b97f4a7c15;  // no token cancels it
  for (size_t i = text.size() + tail.size() - static_cast<size_t>(n); n > 0; ++i, --n) {
    const Token t = i < text.size() ? text[i] : tail[i - text.size()];
    hash = (hash ^ static_cast<uint32_t>(t)) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash;
}

void NgramIndex::enter(std::span<const Token> text, size_t at, bool older) {
  const int longest = std::min(hashed_, static_cast<int>(at));
  const auto position = static_cast<uint32_t>(at);
  for (int k = 1; k <= longest; ++k) {
    Places& places = places_[last(text.first(at), {}, k)];
    if (places.last == 0) {
      places = {position, position};
    } else if (older) {
      if (k == hashed_) before_[places.first] = position;
      places.first = position;
    } else {
      if (k == hashed_) before_[at] = places.last;
      places.last = position;
    }
  }
}

void NgramIndex::advance(std::span<const Token> text) {
  TANDEM_CHECK(text.size() >= end_);
  if (before_.size() <= text.size()) before_.resize(text.size() + text.size() / 4 + 64);
  if (end_ == 0) begin_ = end_ = text.size();
  // Only grams followed by a token, so that the suffix of the text does not find itself.
  for (; end_ < text.size(); ++end_) enter(text, end_, /*older=*/false);
  for (size_t i = 0; i < kSlice && begin_ > 0; ++i) enter(text, --begin_, /*older=*/true);
}

NgramIndex::Match NgramIndex::find(std::span<const Token> text, std::span<const Token> tail) const {
  const size_t end = text.size() + tail.size();
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : tail[i - text.size()]; };
  for (int k = std::min(hashed_, static_cast<int>(end)); k >= 1; --k) {
    const auto found = places_.find(last(text, tail, k));
    if (found == places_.end()) continue;
    Match best{found->second.last, k};
    if (k < hashed_ || max_n_ == hashed_) return best;
    size_t next = best.next;
    for (int i = 0; i < kCandidates && next > 0 && best.matched < max_n_; ++i) {
      const auto most = std::min(static_cast<size_t>(max_n_), next);
      auto matched = static_cast<size_t>(k);
      while (matched < most && at(next - 1 - matched) == at(end - 1 - matched)) ++matched;
      if (static_cast<int>(matched) > best.matched) best = {next, static_cast<int>(matched)};
      next = before_[next];
    }
    return best;
  }
  return {};
}

std::vector<Token> NgramIndex::propose(std::span<const Token> text, int n) {
  advance(text);
  std::vector<Token> drafts;
  const Match match = find(text, {});
  if (match.matched == 0) return drafts;
  for (size_t i = match.next; static_cast<int>(drafts.size()) < n; ++i) {
    drafts.push_back(i < text.size() ? text[i] : drafts[i - text.size()]);
  }
  return drafts;
}

}  // namespace tandem
