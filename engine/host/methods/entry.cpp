#include "engine/host/methods/entry.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/host/deployment.h"

namespace tandem {

AdapterId find_adapter(const ModelShape& model, const std::string& name) {
  const auto found = std::ranges::find(model.adapters, name, &AdapterShape::name);
  return found == model.adapters.end() ? AdapterId() : AdapterId(found - model.adapters.begin());
}

HeadId find_head(const ModelShape& model, const std::string& name) {
  const auto found = std::ranges::find(model.heads, name, &HeadShape::name);
  return found == model.heads.end() ? HeadId() : HeadId(found - model.heads.begin());
}

const ModelShape& adapter_owner(const LoadedModel& model, const ModelInRole& role) {
  return role.conditioned_by && model.encoder != nullptr ? model.encoder->shape : model.shape;
}

std::optional<Refusal> masks_misfit(const ModelShape& model, const ModelInRole& role) {
  const AdapterShape& adapter = model.adapters[find_adapter(model, role.mask_adapter).index()];
  if (adapter.masks == 0) {
    return Refusal{role.mask_field, quote_value(role.mask_adapter), "an extra of kind \"masks\""};
  }
  if (role.masks <= adapter.masks) return std::nullopt;
  return Refusal{"num_masks", std::to_string(role.masks),
                 "1 to " + std::to_string(adapter.masks) + ", the masks of " + role.mask_adapter};
}

std::optional<Refusal> MethodEntry::check(const Settings& settings, Field::By by) const {
  const auto may_set = [by](const Field& f) { return f.by == by || f.by == Field::By::kBoth; };
  for (const Setting& s : settings) {
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const Field& f) { return f.name == s.name && may_set(f); });
    if (field == fields.end()) {
      std::vector<std::string> names;
      for (const Field& f : fields) {
        if (may_set(f)) names.push_back(f.name);
      }
      return Refusal{s.name, setting_text(s.value),
                     "unset (parameters are " + absl::StrJoin(names, ", ") + ")"};
    }
    if (auto refusal = field->check(s.value)) return refusal;
  }
  return std::nullopt;
}

}  // namespace tandem
