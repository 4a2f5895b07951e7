#include "engine/pass/token_history.h"

#include <algorithm>

namespace tandem {

void TokenCounts::clear(int prompt_tokens) {
  path_.clear();
  counts_.clear();
  index_.clear();
  prompt_tokens_ = prompt_tokens;
}

void TokenCounts::push(Token t) {
  ++updates_;
  const int output = rows() >= prompt_tokens_ ? 1 : 0;
  path_.push_back(t);
  if (t < 0) return;
  const auto [at, added] = index_.try_emplace(t, static_cast<int32_t>(counts_.size()));
  if (added) counts_.push_back({t, 0, 0});
  Count& count = counts_[static_cast<size_t>(at->second)];
  ++count.all;
  count.output += output;
}

void TokenCounts::pop() {
  ++updates_;
  const Token t = path_.back();
  path_.pop_back();
  if (t < 0) return;
  const auto at = index_.find(t);
  Count& count = counts_[static_cast<size_t>(at->second)];
  count.output -= rows() >= prompt_tokens_ ? 1 : 0;
  if (--count.all > 0) return;
  // Tokens that first occurred behind this one are gone already, so its count is the last.
  counts_.pop_back();
  index_.erase(at);
}

TokenHistory::TokenHistory(const TokenHistory& other)
    : tokens_(other.tokens_),
      known_(other.known()),
      counted_(other.counted_),
      counts_(other.counts_) {}

void TokenHistory::append(Token t) {
  tokens_.push_back(t);
  known_.store(static_cast<int>(tokens_.size()), std::memory_order_relaxed);
}

TokenCounts& TokenHistory::count(int rows, int prompt_tokens) {
  if (counts_.prompt_tokens() != prompt_tokens) {
    counts_.clear(prompt_tokens);
    counted_ = 0;
  }
  uncount(rows);
  for (; counted_ < rows; ++counted_) counts_.push(token(counted_));
  return counts_;
}

void TokenHistory::truncate(int rows) {
  if (rows >= known()) return;
  uncount(rows);
  tokens_.resize(static_cast<size_t>(rows));
  known_.store(rows, std::memory_order_relaxed);
}

void TokenHistory::uncount(int rows) {
  counted_ = std::min(counted_, rows);
  while (counts_.rows() > counted_) counts_.pop();
}

}  // namespace tandem
