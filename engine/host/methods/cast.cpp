#include "engine/host/methods/cast.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

absl::StatusOr<CastRole> role_of(const Deployment& deployment, const MethodEntry& entry,
                                 const ModelInRole& wanted) {
  const LoadedModel& model = *deployment.models.at(wanted.model);
  CastRole role{wanted.role, model.id, wanted.to, wanted.frontier_rows};
  role.prompt_only = wanted.prompt_only;
  role.encodes = wanted.prompt_only && model.encoder != nullptr;
  if (role.encodes) role.model = model.encoder->id;
  if (!wanted.adapter.empty()) {
    role.adapter = find_adapter(adapter_owner(model, wanted), wanted.adapter);
  }
  if (wanted.mask_adapter.empty()) return role;
  if (const auto misfit = masks_misfit(model.shape, wanted)) {
    return out_of_range(entry.path(misfit->field), misfit->value, misfit->allowed);
  }
  role.mask_adapter = find_adapter(model.shape, wanted.mask_adapter);
  return role;
}

// A role whose model has an encoder reads its rows. Roles of one model share the encoder's role.
void add_encoders(const Deployment& deployment, const std::vector<ModelInRole>& wanted,
                  Cast* cast) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const LoadedModel* const encoder = deployment.models.at(wanted[i].model)->encoder;
    if (encoder == nullptr || cast->roles[i].encodes) continue;
    auto known = std::ranges::find(cast->roles, encoder->id, &CastRole::model);
    if (known == cast->roles.end()) known = cast->roles.insert(known, encoder_role(encoder->id));
    cast->memories.push_back(
        {.reader = static_cast<int>(i), .encoder = static_cast<int>(known - cast->roles.begin())});
  }
}

// Adds the edges of conditioned roles. An encoder takes the place of its decoder at both ends.
// REQUIRES: encoders have been added.
absl::Status add_conditioning(const Deployment& deployment, const MethodEntry& entry,
                              const std::vector<ModelInRole>& wanted, Cast* cast) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].conditioned_by) continue;
    const auto found = std::ranges::find(cast->roles, *wanted[i].conditioned_by, &CastRole::role);
    const auto from = static_cast<size_t>(found - cast->roles.begin());
    CastRole& source = cast->roles[from];
    const AdapterId id = std::exchange(cast->roles[i].adapter, AdapterId());
    const AdapterShape& adapter =
        adapter_owner(*deployment.models.at(wanted[i].model), wanted[i]).adapters[id.index()];
    const int from_memory = cast->memory_of(from), to_memory = cast->memory_of(i);
    const bool encoded = source.encodes || from_memory >= 0;
    ConditioningEdge edge;
    edge.from = from_memory >= 0 ? from_memory : static_cast<int>(from);
    edge.to = to_memory >= 0 ? to_memory : static_cast<int>(i);
    edge.layer = encoded ? 0 : adapter.layer;
    edge.replace = adapter.replace;
    edge.distinct_tokenizer = adapter.foreign;
    cast->roles[static_cast<size_t>(edge.to)].adapter = id;
    cast->conditioning.push_back(edge);
    if (source.prompt_only && !encoded) {  // it runs no layers above those that are read
      const int layers = deployment.large->shape.layers;
      source.layers = adapter.layer < layers ? adapter.layer : 0;
    }
    if (!source.prompt_only && deployment.conditioned_only()) {
      return not_offered(deployment, entry.path("speculative"), "true",
                         "false (its models cannot be taken for each other)");
    }
  }
  return absl::OkStatus();
}

int64_t replica_capacity(const LoadedModel& model, const CastRole& role, int width,
                         int extra_rows) {
  const int64_t most = model.shape.max_positions;
  const int page_rows = model.pool.page_rows;
  const int64_t rows = std::min(most, model.pool.pages / width * page_rows - extra_rows);
  if (role.frontier_pages(model.shape.layers, page_rows, rows) <= model.pool.frontier_pages) {
    return rows;
  }
  return std::min(rows, model.pool.frontier_pages * page_rows - extra_rows);
}

}  // namespace

absl::Status not_offered(const Deployment& deployment, absl::string_view field,
                         absl::string_view value, absl::string_view offered) {
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat(field, ": ", value, "; offered by model \"",
                                                 deployment.name, "\": ", offered)),
      "METHOD_NOT_OFFERED");
}

absl::StatusOr<std::shared_ptr<const Cast>> cast_of(const Deployment& deployment,
                                                    const MethodEntry& entry,
                                                    const std::vector<ModelInRole>& wanted) {
  auto cast = std::make_shared<Cast>();
  for (const ModelInRole& model : wanted) {
    TANDEM_ASSIGN_OR_RETURN(const CastRole role, role_of(deployment, entry, model));
    cast->roles.push_back(role);
  }
  add_encoders(deployment, wanted, cast.get());
  TANDEM_RETURN_IF_ERROR(add_conditioning(deployment, entry, wanted, cast.get()));
  return cast;
}

int64_t text_capacity(const LoadedModel& model, const CastRole& role, int width, int extra_rows) {
  int64_t rows = std::numeric_limits<int64_t>::max();
  for (const LoadedModel* m : model.instances()) {
    rows = std::min(rows, replica_capacity(*m, role, width, extra_rows));
  }
  return rows;
}

int64_t prompt_capacity(const Deployment& deployment, const LoadedModel& model,
                        const CastRole& role) {
  if (!role.encodes) return text_capacity(model, role, 1, 0);
  return source_length_of(model, deployment.step_rows);
}

}  // namespace tandem
