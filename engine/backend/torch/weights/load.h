// Unaligned loads.
#pragma once

#include <cstddef>
#include <cstring>

namespace tandem {

// Loads a T from any address.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace tandem
