// Coroutines that may go on, in the order in which they became ready.
//
// Whatever completes an await puts the waiter here instead of resuming it, so that resumption never
// nests and its order is one decision in one place: first in first out, or seeded in simulation.
// Not thread-safe: on the loop only.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>

namespace tandem {

class ReadyQueue {
 public:
  struct Entry {
    std::coroutine_handle<> waiter;
    uint64_t owner;  // whose frame it is, for purge()
  };

  // With a seed, pop() takes a random entry: an order that a test can replay.
  void shuffle(uint64_t seed) { order_.emplace(seed); }

  void push(std::coroutine_handle<> waiter, uint64_t owner) { entries_.push_back({waiter, owner}); }

  std::optional<Entry> pop() {
    if (entries_.empty()) return std::nullopt;
    if (order_ && entries_.size() > 1) {
      std::swap(entries_.front(), entries_[(*order_)() % entries_.size()]);
    }
    Entry e = entries_.front();
    entries_.pop_front();
    return e;
  }

  // Forgets what belongs to frames that are about to be destroyed.
  void purge(uint64_t owner) {
    std::erase_if(entries_, [owner](const Entry& e) { return e.owner == owner; });
  }

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

 private:
  std::deque<Entry> entries_;
  std::optional<std::mt19937_64> order_;
};

}  // namespace tandem
