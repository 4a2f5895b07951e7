// Memory prefetching.
//
// The loop visits hundreds of sequences in turn, whose state exceeds the processor's inner caches.
// It prefetches a sequence one or two visits ahead.
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
