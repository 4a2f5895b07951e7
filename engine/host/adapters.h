// The LoRA adapters of a deployment: those of its configuration, and others that come and go while
// requests run.
//
// An AdapterRef keeps an adapter: a request has one from its arrival until no device works on it.
// An adapter that leaves the table has no new requests. When its last reference is gone, its memory
// is freed. The count of bytes covers all adapters whose memory is not free yet.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/host/requests/request.h"

namespace tandem {

struct AcceptanceStats;    // engine/decode/pacing/acceptance_stats.h
struct AdapterSeries;      // engine/sched/metrics.h
struct AdapterTableState;  // adapters.cpp

// A LoRA adapter of the large model, as requests see it.
struct DeploymentAdapter {
  std::string name = {};
  LoraId id = {};         // never that of another adapter of the model
  std::string path = {};  // of its folder or file; empty: of a fake model's configuration
  int rank = 0;           // the largest of its layers
  int64_t bytes = 0;      // on each instance of the model
  bool pinned = true;     // of the configuration: it stays
  // As those of Deployment, of requests with the adapter.
  std::shared_ptr<AcceptanceStats> acceptance_stats = {}, conditioned_stats = {};
  std::shared_ptr<AdapterSeries> series = {};
};
using AdapterRef = std::shared_ptr<const DeploymentAdapter>;

// Thread-safe.
class AdapterTable {
 public:
  // Limits of the sum of bytes and of the number of adapters; 0: none.
  explicit AdapterTable(int64_t memory_bytes = 0, int max_adapters = 0);
  AdapterTable(const AdapterTable&) = delete;
  AdapterTable& operator=(const AdapterTable&) = delete;
  ~AdapterTable();

  // Null: there is none. The adapter counts as used now.
  AdapterRef find(absl::string_view name) const;
  // Also one that has left the table, while a reference to it exists.
  AdapterRef find(LoraId id) const;
  // In the order in which they came.
  std::vector<std::string> names() const;
  std::vector<AdapterInfo> infos() const;
  std::vector<AdapterRef> all() const;
  int64_t bytes() const;  // of all adapters that have not been freed

  // Adds one of the configuration.
  void pin(DeploymentAdapter adapter);
  // Checks the limits for the adapters of the configuration. INVALID_ARGUMENT, with the figures.
  absl::Status check_limits() const;

  // Memory that an adapter may take from now on, until it is given up or the adapter is freed.
  class Room {
   public:
    Room() = default;
    Room(Room&& other) noexcept;
    Room& operator=(Room&& other) noexcept;
    ~Room();

   private:
    friend class AdapterTable;
    std::shared_ptr<AdapterTableState> of_;
    int64_t bytes_ = 0;
  };
  // The name may be added. ALREADY_EXISTS: it is taken, and `replace` is not set.
  // FAILED_PRECONDITION: it is taken by an adapter of the configuration.
  absl::Status check_name(const std::string& name, bool replace) const;
  // Removes idle adapters for an adapter of `bytes`, the least recently used first. That with the
  // name of the new one is only removed if nothing else suffices. RESOURCE_EXHAUSTED, with the
  // figures: adapters in use and those of the configuration leave too little; nothing is removed.
  absl::StatusOr<Room> make_room(const std::string& name, int64_t bytes);
  // Whether make_room() would find room now. Removes nothing.
  absl::Status check_room(const std::string& name, int64_t bytes) const;
  // Adds an adapter, instead of one of its name if there is one. `freed` is called when its last
  // reference is gone, on any thread.
  void add(DeploymentAdapter adapter, Room room,
           std::function<void(const DeploymentAdapter&)> freed);
  // NOT_FOUND lists the known names. FAILED_PRECONDITION: it is of the configuration.
  absl::Status remove(const std::string& name);
  // Removes all adapters, without calls of `freed` from now on.
  void close();

 private:
  const std::shared_ptr<AdapterTableState> state_;
};

}  // namespace tandem
