// The methods of a deployment, compiled once when it is loaded. A request looks its method up and
// adds its parameters. docs/architecture.md draws the way of a request.
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
#include "engine/host/methods/declare.h"
#include "engine/host/methods/entry.h"
#include "engine/host/requests/request.h"
#include "engine/sched/spec.h"

namespace tandem {

// What a request runs.
struct MethodPlan {
  std::string method;  // never kAuto
  Contract contract = Contract::kExact;
  std::function<Task<void>(Gen)> start;
  std::shared_ptr<const Cast> cast;  // large role first
  int width = 1;                     // SequenceSpec::width
  int extra_rows = 0;                // SequenceSpec::extra_rows
  int64_t context_length = 0;        // rows of text that each of its caches can hold
  bool available = true;             // no device that it needs is lost
  // Rows of the caches that hold only the prompt.
  int64_t prompt_length = std::numeric_limits<int64_t>::max();
  std::string reader, writer;  // model names, if one model runs the prompt for another
};

// The roles of a method with some parameters.
struct MethodVariant {
  std::vector<ModelInRole> needs;
  absl::Status status;               // why requests cannot use it
  std::shared_ptr<const Cast> cast;  // roles of `needs` in their order, then encoders
  int64_t prompt_length = std::numeric_limits<int64_t>::max();
  std::string reader, writer;
};

// A method that a deployment offers. Immutable.
struct CompiledMethod {
  const MethodEntry* entry = nullptr;
  std::vector<MethodVariant> variants;  // with default parameters, and each value of the switch
};

// A method and its parameters, as chosen for a request.
struct MethodChoice {
  const MethodEntry* entry = nullptr;
  Settings parameters;
  const Settings* beams = nullptr;  // beam search by the small model of a conditioned method
  LoraId lora = {};                 // an adapter of the large model; invalid: none
};

// Sets d->methods and d->compiled, and d->conditioning->adapter. REQUIRES: models, conditioning and
// numbers of `d` are set, and its settings fit its models.
void compile_methods(const std::vector<DeclaredMethod>& declared, Deployment* d);

// Plans a compiled method. `greedy`: the request's temperature is 0. Errors: FAILED_PRECONDITION
// for parameters that the deployment does not offer, INVALID_ARGUMENT for those out of range.
// REQUIRES: no_lora() is empty.
absl::StatusOr<MethodPlan> plan_choice(const Deployment& d, const MethodChoice& choice,
                                       bool greedy);

// Why the choice cannot run with its LoRA adapter; empty: it can, or has none.
std::string no_lora(const Deployment& d, const MethodChoice& choice);

// The contract on a device. EXACT is bit for bit: methods that verify several rows in a pass need
// batch-invariant kernels, and are exact up to rounding elsewhere.
Contract contract_on(const MethodEntry& entry, Contract contract, bool batch_invariant);

// Offers of `declared`, the deployment's default first: its default_method, else the first method
// that is exact (up to rounding) and has settings for `auto`, else autoregressive decoding.
std::vector<MethodInfo> offers_of(const DeploymentConfig& config,
                                  const std::vector<DeclaredMethod>& declared,
                                  bool batch_invariant);

}  // namespace tandem
