// What a deployment's file says of its methods, before any model is loaded.
#pragma once

#include <vector>

#include "engine/base/config.h"
#include "engine/host/methods/entry.h"
#include "engine/host/methods/registry.h"
#include "engine/host/models/pools.h"

namespace tandem {

// A method with the deployment's defaults, as a request without parameters runs it.
struct DeclaredMethod {
  const MethodEntry* entry = nullptr;
  MethodNeeds needs;
};

// The methods whose needs the deployment's file meets, in the order of `methods`. Autoregressive
// decoding is always among them. REQUIRES: the settings of `config` are within their ranges.
std::vector<DeclaredMethod> declared_methods(
    const DeploymentConfig& config, const std::vector<const MethodEntry*>& methods = all_methods());

// How the declared methods of all deployments use the hidden states of each model.
HiddenStatesByModel hidden_states_of(const EngineConfig& config);

}  // namespace tandem
