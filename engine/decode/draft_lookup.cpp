#include "engine/decode/draft_lookup.h"

#include <algorithm>

namespace tandem {
namespace {

// Drafts of a round for each token of the match, and in all.
constexpr int kPerMatched = 4, kLong = 64;

}  // namespace

Token DraftLookup::at(size_t i, std::span<const Token> tail) const {
  const std::vector<Token>& seq = g_.seq();
  return i < seq.size() ? seq[i] : tail[i - seq.size()];
}

DraftLookup::Draft DraftLookup::draft(std::span<const Token> tail) const {
  if (of_own_.matched > 0) return {at(of_own_.next, tail), {of_own_.matched}};
  return {of_history_.token, {of_history_.matched, /*history=*/true}};
}

// A request's own text is more likely to be what it copies: it wins where both are equal.
void DraftLookup::search(std::span<const Token> tail) {
  size_ = g_.seq().size() + tail.size();
  of_own_ = own_.find(g_.seq(), tail);
  of_history_ = {};
  const auto [history, tenant] = g_.earlier_texts();
  if (history == nullptr || max_ngram_ <= NgramIndex::kHashed) return;
  of_history_ = history->find(*tenant, g_.seq(), tail, max_ngram_);
  if (of_history_.matched > of_own_.matched) {
    of_own_ = {};
  } else {
    of_history_ = {};
  }
}

// No other match is longer: it would have been before.
bool DraftLookup::go_on(std::span<const Token> tail) {
  if (tail.empty() || g_.seq().size() + tail.size() != size_ + 1) return false;
  if (of_own_.matched > 0) {
    if (at(of_own_.next, tail) != tail.back()) return false;
    ++of_own_.next;
    if (of_own_.matched < NgramIndex::kHashed) ++of_own_.matched;
  } else {
    if (of_history_.matched == 0 || of_history_.token != tail.back()) return false;
    of_history_ = g_.earlier_texts().history->behind(of_history_);
    if (of_history_.matched == 0) return false;
  }
  ++size_;
  return true;
}

void DraftLookup::begin_round() {
  own_.advance(g_.seq());
  const auto [history, tenant] = g_.earlier_texts();
  if (history != nullptr && max_ngram_ > NgramIndex::kHashed) history->advance(*tenant);
  search({});
  first_ = std::max(of_own_.matched, of_history_.matched);
}

int DraftLookup::most() const {
  return first_ == 0 ? 0 : std::clamp(kPerMatched * first_, kShortLookup, kLong);
}

DraftLookup::Draft DraftLookup::next(std::span<const Token> tail) {
  // A short match is looked up in constant time.
  const bool short_ones = max_ngram_ <= NgramIndex::kHashed;
  if (g_.seq().size() + tail.size() != size_ && (short_ones || !go_on(tail))) search(tail);
  return draft(tail);
}

std::vector<Token> DraftLookup::copy(int most) {
  std::vector<Token> tokens;
  while (static_cast<int>(tokens.size()) < most) {
    const Draft draft = next(tokens);
    if (draft.by.tokens == 0) break;
    tokens.push_back(draft.token);
  }
  return tokens;
}

size_t useful_drafts(Gen g, std::span<const Token> drafts) {
  const size_t legal = g.legal_drafts(drafts);
  if (legal == 0 || !g.ends(drafts.first(legal))) return legal;
  size_t low = 0, high = legal;  // the first `low` drafts do not end it, the first `high` do
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    (g.ends(drafts.first(middle)) ? high : low) = middle;
  }
  return high;
}

}  // namespace tandem
