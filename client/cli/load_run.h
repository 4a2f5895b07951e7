// Runs a load and records its samples. Blocks until the last request has ended.
#pragma once

#include <functional>
#include <vector>

#include "client/cli/load_figures.h"
#include "engine/base/clock.h"

namespace tandem::cli {

// Sends request `index` and fills the sample except `due`, in times since `begin` of `clock`.
// Called on many threads concurrently.
using Send = std::function<void(int index, TimePoint begin, Sample* sample)>;

// Each of `concurrency` senders sends its next request when the previous one has ended, up to
// `count` requests in total. A request is due when it is sent.
std::vector<Sample> closed_loop(const Clock& clock, int count, int concurrency, const Send& send);

// Sends each request at its arrival time, independent of earlier requests.
std::vector<Sample> open_loop(const Clock& clock, const std::vector<Duration>& arrivals,
                              const Send& send);

}  // namespace tandem::cli
