// From a request to the method that it runs: coroutine, roles and contract.
//
// Pure functions. Errors are INVALID_ARGUMENT for a value out of range, and FAILED_PRECONDITION for
// a method that the deployment does not offer or a contract that the parameters do not give.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/choose.h"
#include "engine/host/methods/compile.h"
#include "engine/host/requests/request.h"

namespace tandem {

// Checks only the ranges of a request's parameters: "ngram.max_ngram: 65; allowed: [1, 64]".
absl::Status check_parameters(const MethodEntry& method, const Settings& asked);

// `greedy`: the temperature that the request resolves to is 0. `prompt_tokens`: `auto` skips
// methods that have no room for them and the answer, or whose device is lost. For a named method
// the caller checks MethodPlan::context_length.
//
// Beam search (width above 1) belongs to autoregressive decoding and to a conditioned small model.
// It takes one choice and no temperature, and is LOSSY.
absl::StatusOr<MethodPlan> plan_method(const Deployment& deployment, const GenerateRequest& request,
                                       bool greedy, int64_t prompt_tokens);

}  // namespace tandem
