// Ranges of the sampling parameters that a client, or a model's generation_config.json, may give.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/ids.h"
#include "engine/pass/pass.h"

namespace tandem::sampling {

// As sent: doubles and wide integers, so that nothing is lost before it is checked.
struct Params {
  double temperature = 0;                              // [0, 100]; 0: greedy
  int64_t top_k = 0;                                   // [0, 2147483647]; 0: off
  double top_p = 1;                                    // (0, 1]; 1: off
  double min_p = 0;                                    // [0, 1]; 0: off
  double typical_p = 1;                                // (0, 1]; 1: off
  double repetition_penalty = 1;                       // [0.01, 100]; 1: off
  double presence_penalty = 0;                         // [-2, 2]; 0: off
  double frequency_penalty = 0;                        // [-2, 2]; 0: off
  std::vector<std::pair<int64_t, double>> logit_bias;  // token, [-100, 100]; a token once
  std::vector<int64_t> bad_token_ids;
};

// INVALID_ARGUMENT naming the first field outside its range, its value and the range; NaN is
// outside. Token ids are in [0, vocab_size).
absl::Status validate(const Params& params, int vocab_size);

// What the parameters say of Warp (without processors, seed and choice) and of Processors (without
// min_new_tokens, ends and prompt_tokens). REQUIRES: validate() accepts them.
Warp warp_of(const Params& params);
Processors processors_of(const Params& params);

// INVALID_ARGUMENT when no token is left: all are banned for good, or until min_new_tokens.
absl::Status check_bans(const Processors& processors, int vocab_size);

}  // namespace tandem::sampling
