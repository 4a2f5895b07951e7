// Numbers at any place of a file.
#pragma once

#include <cstddef>
#include <cstring>

namespace tandem {

// The T whose bytes begin there.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace tandem
