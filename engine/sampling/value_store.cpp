#include "engine/sampling/value_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem {

void ValueStore::put_picks(TicketId ticket, std::vector<Picks> picks) {
  if (picks.empty()) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[ticket];
  for (Picks& p : picks) {
    const auto old = std::find_if(entry.picks.begin(), entry.picks.end(),
                                  [&](const Picks& q) { return q.out == p.out; });
    if (old != entry.picks.end()) {
      *old = std::move(p);
    } else {
      entry.picks.push_back(std::move(p));
    }
  }
  size_.store(entries_.size(), std::memory_order_release);
}

void ValueStore::put_dist(TicketId ticket, int out, Distribution probs) {
  auto dist = std::make_shared<const Distribution>(std::move(probs));
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[ticket];
  const auto old = std::find_if(entry.dists.begin(), entry.dists.end(),
                                [&](const auto& d) { return d.first == out; });
  if (old != entry.dists.end()) {
    old->second = std::move(dist);
  } else {
    entry.dists.emplace_back(out, std::move(dist));
  }
  size_.store(entries_.size(), std::memory_order_release);
}

absl::StatusOr<Token> ValueStore::pick(const ValueRef& ref, int rank) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(ref.ticket); it != entries_.end()) {
      for (const Picks& p : it->second.picks) {
        if (p.out != ref.out) continue;
        if (rank == kDrawn && p.token >= 0) return p.token;
        if (rank >= 0 && static_cast<size_t>(rank) < p.ranked.size()) {
          return p.ranked[static_cast<size_t>(rank)];
        }
      }
    }
  }
  return absl::InternalError(
      absl::StrCat("pass ", ref.ticket, " shares no ",
                   rank == kDrawn ? "drawn token" : absl::StrCat("token of rank ", rank),
                   " of its output ", ref.out));
}

absl::StatusOr<std::shared_ptr<const Distribution>> ValueStore::dist(TicketId ticket,
                                                                     int out) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(ticket); it != entries_.end()) {
      for (const auto& [index, dist] : it->second.dists) {
        if (index == out) return dist;
      }
    }
  }
  return absl::InternalError(
      absl::StrCat("pass ", ticket, " kept no distribution of its output ", out));
}

void ValueStore::forget(TicketId ticket) { forget(std::span(&ticket, 1)); }

void ValueStore::forget(std::span<const TicketId> tickets) {
  if (tickets.empty() || size() == 0) return;
  std::vector<Entry> dropped;  // freed after the lock is released
  const std::lock_guard lock(mutex_);
  for (const TicketId ticket : tickets) {
    const auto it = entries_.find(ticket);
    if (it == entries_.end()) continue;
    dropped.push_back(std::move(it->second));
    entries_.erase(it);
  }
  size_.store(entries_.size(), std::memory_order_release);
}

}  // namespace tandem
