// Values that passes leave for later passes: picks (kChosen inputs) and kept distributions
// (`against`).
//
// A ticket names a pass, and an index into the pass's Readout::row one of its outputs. A pass that
// is split into chunks adds its outputs chunk by chunk.
//
// Threading: thread-safe. One store serves all CPU devices of a process, so that a draft made on
// one device can be read on another. While the store is empty, forget() and size() take no lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"
#include "engine/pass/pass.h"

namespace tandem {

// Tokens of one output that later passes may name.
struct Picks {
  int out = 0;                // index into Readout::row of the whole pass
  Token token = -1;           // drawn; -1: Read::draw was not set
  std::vector<Token> ranked;  // best first
};

using Distribution = std::vector<float>;  // probabilities [vocab]

class ValueStore {
 public:
  // Adds to the outputs of `ticket`, and replaces those that exist.
  void put_picks(TicketId ticket, std::vector<Picks> picks);
  // probs: [vocab], sums to 1.
  void put_dist(TicketId ticket, int out, Distribution probs);

  // The drawn token (rank kDrawn) or the ranked one (0: best) of output ref.out of ref.ticket.
  // INTERNAL if there is no such pick: a method named a pass that does not share.
  absl::StatusOr<Token> pick(const ValueRef& ref, int rank) const;

  // INTERNAL if none was kept. The pointer stays valid after forget().
  absl::StatusOr<std::shared_ptr<const Distribution>> dist(TicketId ticket, int out) const;

  // Drops the values of these tickets. Unknown tickets are ignored.
  void forget(TicketId ticket);
  void forget(std::span<const TicketId> tickets);

  size_t size() const { return size_.load(std::memory_order_acquire); }  // tickets held

 private:
  struct Entry {
    std::vector<Picks> picks;  // few per pass: searched, not indexed
    std::vector<std::pair<int, std::shared_ptr<const Distribution>>> dists;  // by output
  };

  mutable Mutex mutex_;
  absl::flat_hash_map<TicketId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> size_{0};  // entries_.size(), written under mutex_
};

}  // namespace tandem
