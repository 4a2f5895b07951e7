#include "engine/host/config/config_methods.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/host/config/settings_proto.h"
#include "engine/host/methods/compile.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

absl::Status default_method_from(const pb::Deployment& in, const ConfigFields& fields,
                                 DeploymentConfig* out) {
  const auto& type = *pb::Deployment::Method_descriptor();
  const std::string name = method_of_number(type, in.default_method());
  if (name.empty()) return absl::OkStatus();
  const std::vector<MethodInfo> offered = offers_of(*out, declared_methods(*out), true);
  if (std::ranges::find(offered, name, &MethodInfo::method) == offered.end()) {
    const MethodEntry* method = find_method(name);
    const std::string names =
        absl::StrJoin(offered, ", ", [&](std::string* text, const MethodInfo& m) {
          text->append(pb::Deployment::Method_Name(
              static_cast<pb::Deployment::Method>(method_number(type, m.method))));
        });
    return fields.error(
        "default_method", pb::Deployment::Method_Name(in.default_method()),
        method ? absl::StrCat(names, " (", name, " needs ", method->requirement, ")") : names);
  }
  out->default_method = name;
  return absl::OkStatus();
}

}  // namespace

absl::Status method_defaults_from(const pb::Deployment& in, const ConfigFields& fields,
                                  DeploymentConfig* out) {
  for (const MethodEntry* method : all_methods()) {
    const auto* const field = pb::Deployment::descriptor()->FindFieldByName(method->name);
    if (!field || !field->message_type() || !in.GetReflection()->HasField(in, field)) continue;
    Settings settings = settings_from(in.GetReflection()->GetMessage(in, field));
    if (const auto refusal = method->check(settings, Field::By::kDeployment)) {
      return fields.error(method->path(refusal->field), refusal->value, refusal->allowed);
    }
    out->methods[method->name] = std::move(settings);
  }
  return default_method_from(in, fields, out);
}

}  // namespace tandem
