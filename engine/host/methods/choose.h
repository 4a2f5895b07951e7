// Which method and parameters a request gets: `auto`, require_contract, and what would satisfy it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/compile.h"
#include "engine/host/requests/request.h"

namespace tandem {

// `entry` with the request's parameters and adapter. Beam search replaces autoregressive decoding.
MethodChoice choice_of(const Deployment& d, const GenerateRequest& request,
                       const MethodEntry& entry);

// The first offered method that gives the contract, runs with the request's adapter and has room
// for the request. Autoregressive
// decoding always does, unless the request searches beams.
absl::StatusOr<MethodPlan> plan_auto(const Deployment& d, const GenerateRequest& request,
                                     bool greedy, int64_t prompt_tokens);

// FAILED_PRECONDITION, reason CONTRACT_NOT_SATISFIABLE: `choice` gives `given`. The message lists
// parameters, temperature and other methods that give the required contract.
absl::Status unsatisfied(const Deployment& d, const GenerateRequest& request,
                         const MethodChoice& choice, Contract given, bool greedy);

}  // namespace tandem
