#include "engine/sampling/params.h"

#include <limits>

#include "engine/base/status.h"

namespace tandem::sampling {

absl::Status validate(double temperature, int64_t top_k, double top_p, double min_p) {
  // Written so that NaN fails.
  if (!(temperature >= 0 && temperature <= 100)) {
    return out_of_range("temperature", temperature, "[0, 100]");
  }
  if (top_k < 0 || top_k > std::numeric_limits<int>::max()) {
    return out_of_range("top_k", top_k, "[0, 2147483647]");
  }
  if (!(top_p > 0 && top_p <= 1)) return out_of_range("top_p", top_p, "(0, 1]");
  if (!(min_p >= 0 && min_p <= 1)) return out_of_range("min_p", min_p, "[0, 1]");
  return absl::OkStatus();
}

}  // namespace tandem::sampling
