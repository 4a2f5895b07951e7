// How many threads a launch has.
#pragma once

#include <cstdint>

namespace tandem::cuda {

inline constexpr int kWarp = 32;

// x by y by z blocks, at most 2^31 - 1 by 65535 by 65535, of `threads` threads each.
struct Geometry {
  int threads = 0;  // whole warps, at most 1024
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;

  int64_t blocks() const { return x * y * z; }
};

}  // namespace tandem::cuda
