// The cast of a deployment's method: its models in their roles, and the rows that pass between
// them.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"
#include "engine/pass/cast.h"

namespace tandem {

// FAILED_PRECONDITION, reason METHOD_NOT_OFFERED: the deployment offers only `offered`.
absl::Status not_offered(const Deployment& deployment, absl::string_view field,
                         absl::string_view value, absl::string_view offered);

// The roles of `wanted` in their order, then the encoders that they read. Errors: an adapter does
// not have what the method needs, or the models cannot verify each other's tokens.
absl::StatusOr<std::shared_ptr<const Cast>> cast_of(const Deployment& deployment,
                                                    const MethodEntry& entry,
                                                    const std::vector<ModelInRole>& wanted);

// Rows of text that each of `width` caches of a role may have on any replica, besides `extra_rows`.
// Admission counts in the same way.
int64_t text_capacity(const LoadedModel& model, const CastRole& role, int width, int extra_rows);
// Rows of the prompt that a role may have that runs nothing else.
int64_t prompt_capacity(const Deployment& deployment, const LoadedModel& model,
                        const CastRole& role);

}  // namespace tandem
