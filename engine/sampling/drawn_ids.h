// The ids that a read may draw, as columns of a shortened row of logits: those below Warp::vocab,
// then Warp::more_ids. Columns ascend with their ids, so ties are decided alike.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/pass/pass.h"

namespace tandem::sampling {

class DrawnIds {
 public:
  DrawnIds() = default;
  // size: of the row
  DrawnIds(const Warp& warp, size_t size);

  size_t end() const { return more_.empty() ? first_ : static_cast<size_t>(more_.back()) + 1; }
  std::span<const Token> more() const { return more_; }  // behind the first columns

  Token id(Token column) const;
  Token column(Token id) const;  // -1: it may not be drawn

  // Sets the logits of other ids to -Inf. logits: [end()]
  void clear_others(std::span<float> logits) const;
  // Moves the logits of more() behind the first ones and returns the columns. logits: [end()]
  std::span<float> shorten(std::span<float> logits) const;
  // The reverse: 0 for other ids. row: the columns; afterwards [end()]
  void spread(std::vector<float>* row) const;

 private:
  size_t first_ = 0;  // ids below it have columns of the same number
  std::span<const Token> more_;
};

}  // namespace tandem::sampling
