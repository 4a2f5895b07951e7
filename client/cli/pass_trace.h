// Traces of passes in Chrome's trace format, for chrome://tracing and Perfetto. Pure functions.
#pragma once

#include <vector>

#include "client/cli/comparison.h"
#include "client/cli/json.h"

namespace tandem::cli {

// {"displayTimeUnit": "ms", "traceEvents": [...]}: a process for each method and a thread for each
// role of its models. A pass is a complete event ("ph": "X") with times in microseconds since its
// request arrived. Passes of one role that overlap, such as those of several workers, have further
// threads. Methods that failed are left out.
Json chrome_trace(const std::vector<Compared>& all);

}  // namespace tandem::cli
