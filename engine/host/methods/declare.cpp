#include "engine/host/methods/declare.h"

#include <utility>

namespace tandem {

std::vector<DeclaredMethod> declared_methods(const DeploymentConfig& config,
                                             const std::vector<const MethodEntry*>& methods) {
  std::vector<DeclaredMethod> declared;
  for (const MethodEntry* entry : methods) {
    MethodNeeds needs = entry->with(config, {})->needs(config);
    if (!needs.lacking) declared.push_back({entry, std::move(needs)});
  }
  return declared;
}

HiddenStatesByModel hidden_states_of(const EngineConfig& config) {
  HiddenStatesByModel use;
  for (const DeploymentConfig& d : config.deployments) {
    for (const DeclaredMethod& method : declared_methods(d)) {
      for (const ModelInRole& role : method.needs.models) {
        use[role.model].retain_top |= role.retains_top_hidden;
        if (!role.conditioned_by) continue;
        for (const ModelInRole& source : method.needs.models) {
          use[source.model].condition |= source.role == *role.conditioned_by;
        }
      }
    }
  }
  return use;
}

}  // namespace tandem
