#include "engine/cache/transfer.h"

#include "engine/base/check.h"
#include "engine/base/mutation.h"

namespace tandem {

bool Transfer::has_turn() {
  std::erase_if(after_, [](const auto& earlier) { return earlier->state() == kMade; });
  return after_.empty();
}

void Transfer::add(const Move& move) {
  TANDEM_CHECK(state_ == kWaiting && move.kind == Move::kCopy);
  moves_.push_back(move);
  if (mutated(Mutation::kForgetPin)) return;
  for (const Move::Place& place : {move.from, move.to}) {
    pools(place.model)->of(move.store).pin(place.page);
  }
}

void Transfer::made() {
  state_ = kMade;
  unpin();
  moves_.clear();
  after_.clear();
}

void Transfer::unpin() {
  if (mutated(Mutation::kForgetPin)) return;
  for (const Move& move : moves_) {
    for (const Move::Place& place : {move.from, move.to}) {
      pools(place.model)->unpin(move.store, place.page);
    }
  }
}

}  // namespace tandem
