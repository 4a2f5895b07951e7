// Coroutines that are ready to be resumed.
//
// An operation that completes an await queues the waiter here instead of resuming it. So resumption
// never nests, and the order is defined in one place: first in, first out, or seeded in simulation.
// Not thread-safe: on the loop only.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace tandem {

template <class Owner>
class ReadyQueue {
 public:
  struct Entry {
    std::coroutine_handle<> waiter;
    Owner owner;  // of the frame
  };

  // From now on pop() takes a random entry, in an order that the seed determines.
  void shuffle(uint64_t seed) { order_.emplace(seed); }

  void push(std::coroutine_handle<> waiter, Owner owner) { entries_.push_back({waiter, owner}); }

  std::optional<Entry> pop() {
    if (empty()) return std::nullopt;
    if (order_ && size() > 1) {
      std::swap(entries_[next_], entries_[next_ + (*order_)() % size()]);
    }
    const Entry e = entries_[next_++];
    if (empty()) {
      entries_.clear();
      next_ = 0;
    }
    return e;
  }

  // The entry that pop() returns after `ahead` others, if nothing is pushed; null: none.
  const Entry* peek(size_t ahead) const {
    return ahead < size() ? &entries_[next_ + ahead] : nullptr;
  }

  // Removes the entries of an owner whose frames are about to be destroyed.
  void purge(Owner owner) {
    const auto gone =
        std::remove_if(entries_.begin() + static_cast<ptrdiff_t>(next_), entries_.end(),
                       [&](const Entry& e) { return e.owner == owner; });
    entries_.erase(gone, entries_.end());
  }

  bool empty() const { return next_ == entries_.size(); }
  size_t size() const { return entries_.size() - next_; }

 private:
  std::vector<Entry> entries_;  // those before next_ were popped
  size_t next_ = 0;
  std::optional<std::mt19937_64> order_;
};

}  // namespace tandem
