// The LoRA adapters of the deployments of a file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/host/config/config_fields.h"
#include "tandem/config/v1/deployment.pb.h"

namespace tandem {

// Adds an adapter of `large` to `deployment`. A model loads each path once; a fake model, whose
// adapters have no path, each name.
void add_adapter(const std::string& name, const std::string& path, ModelConfig* large,
                 DeploymentConfig* deployment);

// Fills in `deployment->adapters`. `fields` are those of the deployment.
absl::Status adapters_from(const ConfigFile& file, const tandem::config::v1::Deployment& in,
                           const ConfigFields& fields, ModelConfig* large,
                           DeploymentConfig* deployment);

// A request's `model` is a deployment or an adapter, so no adapter has the name of a deployment.
absl::Status check_adapter_names(const ConfigFile& file,
                                 const std::vector<DeploymentConfig>& deployments);

}  // namespace tandem
