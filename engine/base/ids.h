// Small value types used by all modules.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace tandem {

using Token = int32_t;  // vocabulary id
using Row = int32_t;    // a row of a pass or of a cache; negative where a comment says so

// An integer that does not mix with other integers. -1 means "none".
template <class Tag>
struct StrongId {
  int32_t value = -1;

  constexpr StrongId() = default;
  constexpr explicit StrongId(int64_t v) : value(static_cast<int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  template <class H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value);
  }
};

using DeviceId = StrongId<struct DeviceTag>;    // index into the engine's devices
using ModelId = StrongId<struct ModelTag>;      // a loaded model (weights on one device)
using CacheId = StrongId<struct CacheTag>;      // a sequence cache
using PageId = StrongId<struct PageTag>;        // a page of one pool
using AdapterId = StrongId<struct AdapterTag>;  // a loaded adapter (BiTA parameters, projector)
using LoraId = StrongId<struct LoraTag>;        // a LoRA adapter of a model
using HeadId = StrongId<struct HeadTag>;        // a named head; kOwnHead is the model's own
using RequestId = uint64_t;                     // unique within a process, never reused

inline constexpr HeadId kOwnHead{};

}  // namespace tandem

template <class Tag>
struct std::hash<tandem::StrongId<Tag>> {
  size_t operator()(tandem::StrongId<Tag> id) const { return std::hash<int32_t>()(id.value); }
};
