#include "engine/cache/cache_transfers.h"

#include <algorithm>

#include "engine/base/mutation.h"

namespace tandem {

void CacheTransfers::forget_made() {
  std::erase_if(incoming_, [](const auto& t) { return t->state() == Transfer::kMade; });
  std::erase_if(outgoing_,
                [](const Outgoing& o) { return o.transfer->state() == Transfer::kMade; });
}

void CacheTransfers::add_incoming(const std::shared_ptr<Transfer>& transfer) {
  forget_made();
  for (const auto& earlier : incoming_) transfer->follow(earlier);
  for (const Outgoing& o : outgoing_) transfer->follow(o.transfer);
  incoming_.push_back(transfer);
}

void CacheTransfers::add_outgoing(const std::shared_ptr<Transfer>& transfer, int end, int layers) {
  forget_made();
  for (const auto& earlier : incoming_) transfer->follow(earlier);
  outgoing_.push_back({transfer, end, layers});
}

void CacheTransfers::clear() {
  incoming_.clear();
  outgoing_.clear();
}

Transfer* CacheTransfers::pending() const {
  for (auto t = incoming_.rbegin(); t != incoming_.rend(); ++t) {
    if ((*t)->state() == Transfer::kWaiting) return t->get();
  }
  return nullptr;
}

// Rows must have arrived before they are read, and must have been read before they are overwritten.
bool CacheTransfers::check(int past, std::span<const int> frontier, bool saves) const {
  if (mutated(Mutation::kRunBeforeTransfer)) return true;
  if (pending()) return false;
  const int base = past + static_cast<int>(frontier.size());
  return std::ranges::all_of(outgoing_, [&](const Outgoing& o) {
    if (o.transfer->state() == Transfer::kMade) return true;
    if (base < o.end) return false;
    for (int row = past; row < o.end; ++row) {
      if (saves || frontier[static_cast<size_t>(row - past)] < o.layers) return false;
    }
    return true;
  });
}

}  // namespace tandem
