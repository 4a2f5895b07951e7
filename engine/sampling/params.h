// Ranges of the sampling parameters that a client may send.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tandem::sampling {

// temperature in [0, 100] (0: greedy), top_k in [0, 2147483647] (0: off), top_p in (0, 1] (1: off),
// min_p in [0, 1] (0: off). INVALID_ARGUMENT naming the first field outside; NaN is outside.
absl::Status validate(double temperature, int64_t top_k, double top_p, double min_p);

}  // namespace tandem::sampling
