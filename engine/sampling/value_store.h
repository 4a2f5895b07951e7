// What passes leave for later passes: picks (kChosen inputs) and kept distributions (`against`).
//
// A pass is named by its ticket, one of its outputs by its index into the whole pass's
// Readout::row. A pass that is split over chunks puts its outputs piece by piece.
//
// Threading: safe from any thread; one store serves all CPU devices of a process, so that a draft
// on one device is read on another. While it is empty, forget() and size() take no lock.
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

// What may be named of one output: its drawn token, and its ranked ones.
struct Picks {
  int out = 0;                // index into Readout::row of the whole pass
  Token token = -1;           // drawn; -1: Read::draw was not asked for
  std::vector<Token> ranked;  // best first
};

using Distribution = std::vector<float>;  // probabilities [vocab]

class ValueStore {
 public:
  // Adds to what `ticket` has, replacing outputs that are there.
  void put_picks(TicketId ticket, std::vector<Picks> picks);
  // probs: [vocab], sums to 1.
  void put_dist(TicketId ticket, int out, Distribution probs);

  // The drawn token (rank kDrawn) or the ranked one (0: best) of output ref.out of ref.ticket.
  // INTERNAL where no such pick was put: a method named a pass that does not share.
  absl::StatusOr<Token> pick(const ValueRef& ref, int rank) const;

  // INTERNAL where none was kept. The distribution outlives forget() for whoever holds it.
  absl::StatusOr<std::shared_ptr<const Distribution>> dist(TicketId ticket, int out) const;

  // Drops everything of these tickets; unknown ones are fine.
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
