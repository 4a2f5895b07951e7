// The defaults of a deployment for the methods of its requests.
#pragma once

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/host/config/config_fields.h"
#include "tandem/config/v1/deployment.pb.h"

namespace tandem {

// Sets default_method and methods of `out`, whose models are set: the message with the name of each
// registered method. Refuses a default method that the deployment cannot run. `fields` are those of
// `in`.
absl::Status method_defaults_from(const config::v1::Deployment& in, const ConfigFields& fields,
                                  DeploymentConfig* out);

}  // namespace tandem
