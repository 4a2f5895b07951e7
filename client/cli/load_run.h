// Sends a load and says what happened when. Blocks until the last request has ended.
#pragma once

#include <functional>
#include <vector>

#include "client/cli/load_figures.h"
#include "engine/base/clock.h"

namespace tandem::cli {

// Sends request `index` and fills everything of the sample but `due`, in times since `begin` of
// `clock`. Called on many threads at once.
using Send = std::function<void(int index, TimePoint begin, Sample* sample)>;

// As long as `count` lasts, each of `concurrency` senders sends its next request when the one
// before it has ended; that is when it is due.
std::vector<Sample> closed_loop(const Clock& clock, int count, int concurrency, const Send& send);

// Sends each when it is due, whatever became of those before it.
std::vector<Sample> open_loop(const Clock& clock, const std::vector<Duration>& arrivals,
                              const Send& send);

}  // namespace tandem::cli
