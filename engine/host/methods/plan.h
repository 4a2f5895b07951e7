// Which method a request gets, and with what: from the request's parameters and its deployment's
// defaults to a coroutine, the models that it runs on and what it promises of its output.
//
// Pure functions. Errors are INVALID_ARGUMENT for a value out of its range, and FAILED_PRECONDITION
// for what this deployment does not offer or a contract that these parameters do not give.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/async/task.h"
#include "engine/decode/gen.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"
#include "engine/host/methods/registry.h"
#include "engine/host/requests/request.h"
#include "engine/sched/spec.h"

namespace tandem {

// Ranges alone, of what a request sets: "ngram.max_ngram: 5; allowed: [1, 4]".
absl::Status check_parameters(const MethodEntry& method, const Settings& asked);

// What a deployment of these models offers, its default first: contracts and parameters are those
// of a request that sets nothing. Every method whose needs the deployment meets, hence
// autoregressive decoding always. `batch_invariant`: of the large model. `told_method`, if it is
// not empty: no others but that (Deployment::told_method). REQUIRES: config's settings are within
// their ranges.
std::vector<MethodInfo> offered_methods(
    const DeploymentConfig& config, bool batch_invariant,
    const std::vector<const MethodEntry*>& methods = all_methods(),
    const std::string& told_method = "");

struct MethodPlan {
  std::string method;  // never kAuto
  Contract contract = Contract::kExact;
  std::function<Task<void>(Gen)> start;
  std::shared_ptr<const Cast> cast;
  int width = 1;               // SequenceSpec::width
  int extra_rows = 0;          // SequenceSpec::extra_rows
  int64_t context_length = 0;  // rows of text that every cache of it may have
  bool available = true;       // no device that it needs is lost
  // Of caches that have the prompt's rows alone: so many. The models' names, for errors.
  int64_t prompt_length = std::numeric_limits<int64_t>::max();
  std::string reader, writer;  // empty: one model has both
};

// Beam search (width above 1) is autoregressive decoding's, and that of a small model that writes
// alone what the large one has read. It draws nothing, so it wants a single choice and no
// temperature; LOSSY, because it is not the large model's greedy output and EXACT
// means just that.
bool searches_beams(const GenerateRequest& request);

// The models of a deployment that is up, as methods see them.
MethodModels models_of(const Deployment& deployment);

// `greedy`: of the warp that the request resolves to. `prompt_tokens`: `auto` passes over methods
// that have not the room for them and the answer, or have lost a device; else the caller checks
// against context_length.
//
// `auto` is the deployment's default where that gives the required contract, else the next offered
// method that does. Autoregressive decoding always does. Without a default it is speculative
// sampling where there is a small model, else drafts from n-grams, as many as pay, from none up;
// autoregressive decoding where these are not EXACT.
absl::StatusOr<MethodPlan> plan_method(
    const Deployment& deployment, const GenerateRequest& request, bool greedy,
    int64_t prompt_tokens, const std::vector<const MethodEntry*>& methods = all_methods());

}  // namespace tandem
