#include "engine/host/adapters.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/mutex.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {

// Outlives the table, for references that do.
struct AdapterTableState {
  struct Entry {
    AdapterRef adapter;
    uint64_t used = 0;  // the time of its last use
  };

  AdapterTableState(int64_t most_bytes, int most) : memory_bytes(most_bytes), max_adapters(most) {}

  const int64_t memory_bytes;
  const int max_adapters;
  mutable Mutex mutex;
  std::vector<Entry> entries ABSL_GUARDED_BY(mutex);
  // With ids: a reference that is locked and dropped again could be the last one, whose end takes
  // the mutex.
  std::vector<std::pair<LoraId, std::weak_ptr<const DeploymentAdapter>>> removed
      ABSL_GUARDED_BY(mutex);
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0;  // of entries, removed ones, and room
  int coming ABSL_GUARDED_BY(mutex) = 0;     // adapters that have room and no entry yet
  uint64_t time ABSL_GUARDED_BY(mutex) = 0;
  bool closed ABSL_GUARDED_BY(mutex) = false;

  std::vector<Entry>::iterator find(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return std::ranges::find_if(entries, [&](const Entry& e) { return e.adapter->name == name; });
  }
  // The caller drops the result without the lock, as it may be the last reference.
  AdapterRef take(std::vector<Entry>::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::erase_if(removed, [](const auto& gone) { return gone.second.expired(); });
    removed.emplace_back(entry->adapter->id, entry->adapter);
    AdapterRef out = std::move(entry->adapter);
    entries.erase(entry);
    return out;
  }
  // The idle adapters to remove for one of `bytes`; see make_room().
  absl::StatusOr<std::vector<std::string>> in_the_way(const std::string& name, int64_t more)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void give_up(int64_t freed, int adapters) {
    const MutexLock lock(&mutex);
    bytes -= freed;
    coming -= adapters;
  }
};

namespace {

absl::Status of_configuration(const std::string& name, absl::string_view verb) {
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat("adapter: ", quote_value(name),
                                                 ", an adapter of the configuration; allowed to ",
                                                 verb, ": adapters that were loaded at run time")),
      "ADAPTER_PINNED");
}

// "12 bytes (adapter_memory_bytes), 3 adapters (max_adapters)"
std::string limits_of(const AdapterTableState& of) {
  std::vector<std::string> limits;
  if (of.memory_bytes > 0) {
    limits.push_back(absl::StrCat(of.memory_bytes, " bytes (adapter_memory_bytes)"));
  }
  if (of.max_adapters > 0) {
    limits.push_back(absl::StrCat(of.max_adapters, " adapters (max_adapters)"));
  }
  return absl::StrJoin(limits, ", ");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AdapterTableState::in_the_way(const std::string& name,
                                                                       int64_t more) {
  // References come from the table alone, so one that is the only one stays so.
  std::vector<std::pair<uint64_t, std::string>> idle;
  int64_t idle_bytes = 0;
  for (const auto& [adapter, used] : entries) {
    if (adapter->pinned || adapter.use_count() > 1) continue;
    idle.emplace_back(adapter->name == name ? UINT64_MAX : used, adapter->name);
    idle_bytes += adapter->bytes;
  }
  std::ranges::sort(idle);
  const bool replaces = find(name) != entries.end();
  int64_t left = bytes;
  int64_t count = static_cast<int64_t>(entries.size()) + coming + (replaces ? 0 : 1);
  std::vector<std::string> names;
  while ((memory_bytes > 0 && left + more > memory_bytes) ||
         (max_adapters > 0 && count > max_adapters)) {
    if (names.size() == idle.size()) {
      return with_reason(absl::ResourceExhaustedError(absl::StrCat(
                             "adapter: ", quote_value(name), ", of ", more, " bytes; there are ",
                             entries.size(), " adapters, and ", bytes, " bytes in use, of which ",
                             idle_bytes, " could be freed; allowed: ", limits_of(*this))),
                         "ADAPTER_MEMORY");
    }
    names.push_back(idle[names.size()].second);
    left -= (*find(names.back())).adapter->bytes;
    count -= names.back() == name ? 0 : 1;
  }
  return names;
}

AdapterTable::AdapterTable(int64_t memory_bytes, int max_adapters)
    : state_(std::make_shared<AdapterTableState>(memory_bytes, max_adapters)) {}
AdapterTable::~AdapterTable() {
  std::vector<AdapterTableState::Entry> all;  // dropped after the lock
  MutexLock lock(&state_->mutex);
  all.swap(state_->entries);
  lock.unlock();
}

AdapterRef AdapterTable::find(absl::string_view name) const {
  AdapterTableState& s = *state_;
  const MutexLock lock(&s.mutex);
  const auto it = s.find(name);
  if (it == s.entries.end()) return nullptr;
  it->used = ++s.time;
  return it->adapter;
}

AdapterRef AdapterTable::find(LoraId id) const {
  const MutexLock lock(&state_->mutex);
  for (const auto& entry : state_->entries) {
    if (entry.adapter->id == id) return entry.adapter;
  }
  for (const auto& [gone, adapter] : state_->removed) {
    if (gone == id) return adapter.lock();
  }
  return nullptr;
}

std::vector<std::string> AdapterTable::names() const {
  const MutexLock lock(&state_->mutex);
  std::vector<std::string> names;
  for (const auto& entry : state_->entries) names.push_back(entry.adapter->name);
  return names;
}

std::vector<AdapterInfo> AdapterTable::infos() const {
  const MutexLock lock(&state_->mutex);
  std::vector<AdapterInfo> infos;
  for (const auto& [adapter, used] : state_->entries) {
    infos.push_back({adapter->name, adapter->rank, adapter->bytes});
  }
  return infos;
}

std::vector<AdapterRef> AdapterTable::all() const {
  const MutexLock lock(&state_->mutex);
  std::vector<AdapterRef> all;
  for (const auto& entry : state_->entries) all.push_back(entry.adapter);
  return all;
}

int64_t AdapterTable::bytes() const {
  const MutexLock lock(&state_->mutex);
  return state_->bytes;
}

void AdapterTable::pin(DeploymentAdapter adapter) {
  const MutexLock lock(&state_->mutex);
  state_->bytes += adapter.bytes;
  state_->entries.push_back({std::make_shared<const DeploymentAdapter>(std::move(adapter))});
}

absl::Status AdapterTable::check_limits() const {
  const AdapterTableState& s = *state_;
  const MutexLock lock(&s.mutex);
  const size_t count = s.entries.size();
  const bool fits = (s.memory_bytes == 0 || s.bytes <= s.memory_bytes) &&
                    (s.max_adapters == 0 || std::cmp_less_equal(count, s.max_adapters));
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " adapters with ", s.bytes, " bytes; allowed: ", limits_of(s)));
}

AdapterTable::Room::Room(Room&& other) noexcept
    : of_(std::exchange(other.of_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
AdapterTable::Room& AdapterTable::Room::operator=(Room&& other) noexcept {
  std::swap(of_, other.of_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
AdapterTable::Room::~Room() {
  if (of_ != nullptr) of_->give_up(bytes_, 1);
}

absl::Status AdapterTable::check_name(const std::string& name, bool replace) const {
  AdapterTableState& s = *state_;
  const MutexLock lock(&s.mutex);
  const auto it = s.find(name);
  if (it == s.entries.end()) return absl::OkStatus();
  if (it->adapter->pinned) return of_configuration(name, "replace");
  if (replace) return absl::OkStatus();
  return with_reason(absl::AlreadyExistsError(absl::StrCat(
                         "adapter: ", quote_value(name),
                         ", which is loaded; allowed: another name, or replace (load_inplace)")),
                     "ADAPTER_EXISTS");
}

absl::Status AdapterTable::check_room(const std::string& name, int64_t bytes) const {
  AdapterTableState& s = *state_;
  const MutexLock lock(&s.mutex);
  return s.in_the_way(name, bytes).status();
}

absl::StatusOr<AdapterTable::Room> AdapterTable::make_room(const std::string& name, int64_t bytes) {
  AdapterTableState& s = *state_;
  std::vector<AdapterRef> out;  // dropped after the lock
  MutexLock lock(&s.mutex);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, s.in_the_way(name, bytes));
  for (const std::string& one : names) out.push_back(s.take(s.find(one)));
  s.bytes += bytes;
  ++s.coming;
  lock.unlock();
  Room room;
  room.of_ = state_;
  room.bytes_ = bytes;
  return room;
}

void AdapterTable::add(DeploymentAdapter adapter, Room room,
                       std::function<void(const DeploymentAdapter&)> freed) {
  const int64_t counted = std::exchange(room.bytes_, 0);
  room.of_ = nullptr;
  AdapterRef added(
      new DeploymentAdapter(std::move(adapter)),
      [state = state_, counted, freed = std::move(freed)](DeploymentAdapter* gone) mutable {
        bool closed = false;
        {
          const MutexLock lock(&state->mutex);
          closed = state->closed;
        }
        if (!closed && freed) freed(*gone);
        delete gone;
        state->give_up(counted, 0);
        // The state's weak references keep this function.
        freed = nullptr;
        state = nullptr;
      });
  AdapterRef replaced;  // dropped after the lock
  MutexLock lock(&state_->mutex);
  --state_->coming;
  if (const auto it = state_->find(added->name); it != state_->entries.end()) {
    replaced = state_->take(it);
  }
  state_->entries.push_back({std::move(added), ++state_->time});
  lock.unlock();
}

absl::Status AdapterTable::remove(const std::string& name) {
  AdapterRef removed;  // dropped after the lock
  MutexLock lock(&state_->mutex);
  const auto it = state_->find(name);
  if (it == state_->entries.end()) {
    std::vector<std::string> known;
    for (const auto& entry : state_->entries) known.push_back(quote_value(entry.adapter->name));
    return with_reason(absl::NotFoundError(absl::StrCat(
                           "adapter: ", quote_value(name),
                           "; known: ", known.empty() ? "none" : absl::StrJoin(known, ", "))),
                       "ADAPTER_NOT_LOADED");
  }
  if (it->adapter->pinned) return of_configuration(name, "unload");
  removed = state_->take(it);
  lock.unlock();
  return absl::OkStatus();
}

void AdapterTable::close() {
  std::vector<AdapterTableState::Entry> all;  // dropped after the lock
  MutexLock lock(&state_->mutex);
  state_->closed = true;
  all.swap(state_->entries);
  lock.unlock();
}

}  // namespace tandem
