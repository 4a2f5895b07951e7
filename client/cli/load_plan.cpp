#include "client/cli/load_plan.h"

#include <cmath>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem::cli {
namespace {

// Uniform in [0, 1). The standard distributions differ between implementations; this does not.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

}  // namespace

std::vector<Duration> poisson_arrivals(double per_second, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Duration> out;
  double at = 0;
  for (int i = 0; i < count; ++i) {
    at += -std::log1p(-uniform(random)) / per_second;
    out.push_back(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at)));
  }
  return out;
}

std::vector<std::vector<int32_t>> random_prompts(int count, int tokens, int vocabulary,
                                                 uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto base = static_cast<size_t>(vocabulary);
  int digits = 1;  // ids that encode the prompt's number
  for (size_t most = static_cast<size_t>(count) / base; most > 0; most /= base) ++digits;
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    size_t number = i;
    for (int t = 0; t < tokens; ++t, number /= base) {
      const auto drawn = static_cast<size_t>(uniform(random) * vocabulary);
      out[i].push_back(static_cast<int32_t>(t < digits ? number % base : drawn));
    }
  }
  return out;
}

absl::StatusOr<std::vector<double>> parse_levels(const std::string& flag, const std::string& text) {
  std::vector<double> out;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    double level = 0;
    if (!absl::SimpleAtod(part, &level) || !(level > 0 && level <= 1e6)) {
      return out_of_range(flag, quote_value(part), "numbers in (0, 1e6] as in 1,2,4");
    }
    out.push_back(level);
  }
  return out;
}

}  // namespace tandem::cli
