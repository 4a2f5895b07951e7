// Which models a method runs on, in which roles: from a method's needs to the roles of a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/host/deployment.h"
#include "engine/host/methods/entry.h"
#include "engine/sched/spec.h"

namespace tandem {

// FAILED_PRECONDITION, reason METHOD_NOT_OFFERED: the deployment offers only `offered`.
absl::Status not_offered(const Deployment& deployment, absl::string_view field,
                         absl::string_view value, absl::string_view offered);

absl::StatusOr<RoleModel> role_of(const Deployment& deployment, const MethodEntry& entry,
                                  const ModelInRole& wanted);

// Adds a role for each encoder, which its decoder reads. `roles` has those of `wanted`, in their
// order.
void add_encoders(const Deployment& deployment, const std::vector<ModelInRole>& wanted,
                  std::vector<RoleModel>* roles);

// Connects roles with those whose hidden rows they are fed with. REQUIRES: encoders are there.
absl::Status feed_roles(const Deployment& deployment, const MethodEntry& entry,
                        const std::vector<ModelInRole>& wanted, std::vector<RoleModel>* roles);

// Rows of text that each of `width` caches on this model may have, beside `extra` others, wherever
// it runs. Admission counts the same.
int64_t room_of(const LoadedModel& model, const RoleModel& role, int width, int extra);

// Rows of the prompt that a role may have that reads for another.
int64_t room_to_read(const Deployment& deployment, const LoadedModel& model, const RoleModel& role);

}  // namespace tandem
