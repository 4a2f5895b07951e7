// The transfers that a cache takes part in, and which passes on it must wait for them.
//
// Not thread-safe: on the loop only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/cache/transfer.h"

namespace tandem {

class CacheTransfers {
 public:
  // Rows that arrive with `transfer`: it follows all earlier transfers of this cache.
  void add_incoming(const std::shared_ptr<Transfer>& transfer);
  // Layers [0, layers) of rows before `end` are read by `transfer`, which follows the transfers
  // that bring them.
  void add_outgoing(const std::shared_ptr<Transfer>& transfer, int end, int layers);
  // A fork waits for the rows that its origin waits for.
  void fork_from(const CacheTransfers& other) { incoming_ = other.incoming_; }
  void clear();

  // The last incoming transfer whose moves are in no log yet; moves on this cache go with it. Null:
  // none.
  Transfer* pending() const;
  // May a pass run now that continues rows past, past + 1, ..., which have done `frontier` layers,
  // stores their hidden states if it `saves` them, and adds rows after them?
  bool allow(int past, std::span<const int> frontier, bool saves) const {
    return (incoming_.empty() && outgoing_.empty()) || check(past, frontier, saves);
  }

 private:
  struct Outgoing {
    std::shared_ptr<Transfer> transfer;
    int end;     // it reads rows before this one
    int layers;  // and layers [0, layers) of them
  };
  void forget_made();
  bool check(int past, std::span<const int> frontier, bool saves) const;

  // Some of these may be made already.
  std::vector<std::shared_ptr<Transfer>> incoming_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace tandem
