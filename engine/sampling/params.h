// Checks of sampling parameters that need the vocabulary.
#pragma once

#include "absl/status/status.h"
#include "engine/base/sampling_params.h"
#include "engine/pass/pass.h"

namespace tandem::sampling {

// INVALID_ARGUMENT with one line per wrong field: its value and the allowed range. Unset fields are
// valid. Token ids are in [0, vocab_size), biases in [-100, 100], one per token.
absl::Status validate(const SamplingParams& params, int vocab_size);

// INVALID_ARGUMENT when all tokens are banned, for good or until min_new_tokens.
absl::Status check_bans(const Processors& processors, int vocab_size);

}  // namespace tandem::sampling
