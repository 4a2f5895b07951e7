#include "engine/sampling/drawn_ids.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tandem::sampling {

DrawnIds::DrawnIds(const Warp& warp, size_t size) : first_(size) {
  if (warp.vocab <= 0) return;
  first_ = std::min(size, static_cast<size_t>(warp.vocab));
  if (!warp.more_ids) return;
  const std::vector<Token>& ids = *warp.more_ids;
  const auto begin = std::ranges::lower_bound(ids, static_cast<Token>(first_));
  more_ = {begin, std::ranges::lower_bound(begin, ids.end(), static_cast<Token>(size))};
}

Token DrawnIds::id(Token column) const {
  const auto i = static_cast<size_t>(column);
  return i < first_ ? column : more_[i - first_];
}

Token DrawnIds::column(Token id) const {
  if (id < 0 || static_cast<size_t>(id) < first_) return std::max(id, -1);
  const auto at = std::ranges::lower_bound(more_, id);
  if (at == more_.end() || *at != id) return -1;
  return static_cast<Token>(first_ + static_cast<size_t>(at - more_.begin()));
}

void DrawnIds::clear_others(std::span<float> logits) const {
  size_t next = first_;
  for (const Token id : more_) {
    const auto at = static_cast<size_t>(id);
    std::fill(logits.begin() + static_cast<std::ptrdiff_t>(next),
              logits.begin() + static_cast<std::ptrdiff_t>(at),
              -std::numeric_limits<float>::infinity());
    next = at + 1;
  }
}

std::span<float> DrawnIds::shorten(std::span<float> logits) const {
  for (size_t i = 0; i < more_.size(); ++i) {
    logits[first_ + i] = logits[static_cast<size_t>(more_[i])];
  }
  return logits.first(first_ + more_.size());
}

void DrawnIds::spread(std::vector<float>* row) const {
  row->resize(end());
  for (size_t i = more_.size(); i-- > 0;) {
    const float value = std::exchange((*row)[first_ + i], 0.0F);
    (*row)[static_cast<size_t>(more_[i])] = value;
  }
}

}  // namespace tandem::sampling
