// The part of a deployment file that says how its requests are decoded when they do not.
#pragma once

#include "absl/status/status.h"
#include "engine/base/config.h"
#include "engine/host/config/config_fields.h"
#include "tandem/config/v1/deployment.pb.h"

namespace tandem {

// Fills default_method and methods of `out`, whose models are known: of every method in the
// registry the message that has its name. Refuses also what the deployment cannot have, since it
// would fail every request. `fields` are those of `in`.
absl::Status method_defaults_from(const config::v1::Deployment& in, const ConfigFields& fields,
                                  DeploymentConfig* out);

}  // namespace tandem
