// Plans the load of `tandem bench`. Pure functions: the same seed gives the same load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"

namespace tandem::cli {

// `count` arrivals of a Poisson process, as ascending times since its start.
// REQUIRES: per_second > 0; infinity: all at once.
std::vector<Duration> poisson_arrivals(double per_second, int count, uint64_t seed);

// Prompts of `tokens` ids in [0, vocabulary). All have distinct beginnings, so no prefix is shared.
std::vector<std::vector<int32_t>> random_prompts(int count, int tokens, int vocabulary,
                                                 uint64_t seed);

// "1,2,4.5"; the error names the flag. Each in (0, 1e6], in the order given.
absl::StatusOr<std::vector<double>> parse_levels(const std::string& flag, const std::string& text);

}  // namespace tandem::cli
