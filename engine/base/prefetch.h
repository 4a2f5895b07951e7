// Asks for memory ahead of its use.
//
// The loop goes through hundreds of sequences in turn, and their state is more than a processor's
// near caches hold. Told a sequence or two before, it need not wait for each.
#pragma once

#include <cstddef>

namespace tandem {

inline void prefetch(const void* from, size_t bytes) {
  const auto* const first = static_cast<const char*>(from);
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(first + at);
}
template <class T>
void prefetch(const T* object) {
  prefetch(object, sizeof(T));
}

}  // namespace tandem
