// From the names in a request to its deployment and adapter.
//
// `model` is a deployment, "DEPLOYMENT:ADAPTER", or an adapter that exactly one deployment has.
// Names have no colons. Thread-safe.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/host/deployment.h"

namespace tandem {

struct Target {
  DeploymentRef deployment = nullptr;
  AdapterRef adapter = nullptr;  // null: none
};

// `adapter`: the request's field; empty: unset. NOT_FOUND, reason MODEL_NOT_FOUND or
// ADAPTER_NOT_FOUND, lists the known names. INVALID_ARGUMENT: `model` names another adapter.
absl::StatusOr<Target> find_target(const DeploymentTable& deployments, absl::string_view model,
                                   absl::string_view adapter = "");

// The adapter of this name; null if the name is empty. NOT_FOUND as above.
absl::StatusOr<AdapterRef> known_adapter(const Deployment& deployment, absl::string_view name);

}  // namespace tandem
