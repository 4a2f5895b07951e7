#include "engine/host/methods/cast.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

int64_t room_on(const LoadedModel& model, const RoleModel& role, int width, int extra) {
  const int64_t most = model.shape.max_positions;
  const int64_t rows = std::min(most, model.pool.pages / width * model.pool.page_rows - extra);
  const int page_rows = model.pool.page_rows;
  if (role.frontier_pages(model.shape.layers, page_rows, rows) <= model.pool.frontier_pages) {
    return rows;
  }
  return std::min(rows, model.pool.frontier_pages * page_rows - extra);
}

}  // namespace

absl::Status not_offered(const Deployment& deployment, absl::string_view field,
                         absl::string_view value, absl::string_view offered) {
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat(field, ": ", value, "; offered by model \"",
                                                 deployment.name, "\": ", offered)),
      "METHOD_NOT_OFFERED");
}

// Rows of text that each of `width` caches on this model may have, beside `extra` others, wherever
// it runs. Admission counts the same.
int64_t room_of(const LoadedModel& model, const RoleModel& role, int width, int extra) {
  int64_t room = std::numeric_limits<int64_t>::max();
  for (const LoadedModel* m : model.instances()) {
    room = std::min(room, room_on(*m, role, width, extra));
  }
  return room;
}

// Whoever has an encoder reads what that leaves of the source: a role for each.
void add_encoders(const Deployment& deployment, const std::vector<ModelInRole>& wanted,
                  std::vector<RoleModel>* roles) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const LoadedModel* const encoder = deployment.models.at(wanted[i].model)->encoder;
    if (encoder == nullptr || (*roles)[i].sees_all) continue;
    auto known = std::ranges::find(*roles, encoder->id, &RoleModel::model);
    if (known == roles->end()) {
      known = roles->insert(known, RoleModel{Role::kEncoder, encoder->id});
    }
    (*roles)[i].memory = static_cast<int>(known - roles->begin());
  }
}

// What roles are fed with, by their adapters: an encoder in its decoder's place, and with the rows
// of one likewise. REQUIRES: encoders are there.
absl::Status feed_roles(const Deployment& deployment, const MethodEntry& entry,
                        const std::vector<ModelInRole>& wanted, std::vector<RoleModel>* roles) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].conditioned_by) continue;
    const auto source = std::ranges::find(*roles, *wanted[i].conditioned_by, &RoleModel::role);
    const AdapterId id = std::exchange((*roles)[i].adapter, AdapterId());
    const AdapterShape& adapter =
        adapter_owner(*deployment.models.at(wanted[i].model), wanted[i]).adapters[id.index()];
    RoleModel& fed =
        (*roles)[i].memory < 0 ? (*roles)[i] : (*roles)[static_cast<size_t>((*roles)[i].memory)];
    const bool encoded = source->sees_all || source->memory >= 0;
    fed.adapter = id;
    fed.fed = {static_cast<int>(source - roles->begin()), encoded ? 0 : adapter.layer,
               adapter.replace, adapter.foreign};
    if (source->memory >= 0) fed.fed.role = source->memory;
    if (source->prompt_only && !encoded) {
      const int layers = deployment.large->shape.layers;
      source->to = adapter.layer < layers ? adapter.layer : 0;
    }
    if (!source->prompt_only && deployment.conditioned_only()) {
      return not_offered(deployment, entry.path("speculative"), "true",
                         "false (its models cannot be taken for each other)");
    }
  }
  return absl::OkStatus();
}

// Rows of the prompt that a role may have that reads for another.
int64_t room_to_read(const Deployment& deployment, const LoadedModel& model,
                     const RoleModel& role) {
  if (!role.sees_all) return room_of(model, role, 1, 0);
  return source_length_of(model, deployment.step_rows);
}

absl::StatusOr<RoleModel> role_of(const Deployment& deployment, const MethodEntry& entry,
                                  const ModelInRole& wanted) {
  const LoadedModel& model = *deployment.models.at(wanted.model);
  RoleModel role{wanted.role, model.id, wanted.to, wanted.frontier_rows};
  role.prompt_only = wanted.prompt_only;
  role.sees_all = wanted.prompt_only && model.encoder != nullptr;
  if (role.sees_all) role.model = model.encoder->id;
  if (wanted.adapter.empty()) return role;
  const ModelShape& shape = adapter_owner(model, wanted);
  if (const auto misfit = adapter_misfit(shape, wanted)) {
    return out_of_range(entry.path(misfit->field), misfit->value, misfit->allowed);
  }
  (wanted.masks > 0 ? role.masks : role.adapter) = find_adapter(shape, wanted.adapter);
  return role;
}

}  // namespace tandem
