// Grid and block size of a launch.
#pragma once

#include <cstdint>

namespace tandem::cuda {

inline constexpr int kWarp = 32;

// x * y * z thread blocks (at most 2^31 - 1, 65535, 65535) of `threads` threads.
struct Geometry {
  int threads = 0;  // whole warps; at most 1024
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;

  int64_t blocks() const { return x * y * z; }
};

}  // namespace tandem::cuda
