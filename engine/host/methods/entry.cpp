#include "engine/host/methods/entry.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace tandem {

AdapterId find_adapter(const ModelShape& model, const std::string& name) {
  const auto found = std::ranges::find(model.adapters, name, &AdapterShape::name);
  return found == model.adapters.end() ? AdapterId() : AdapterId(found - model.adapters.begin());
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
