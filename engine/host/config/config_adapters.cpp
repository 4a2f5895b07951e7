#include "engine/host/config/config_adapters.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config_models.h"

namespace tandem {

void add_adapter(const std::string& name, const std::string& path, ModelConfig* large,
                 DeploymentConfig* deployment) {
  std::vector<ExtraConfig>& loras = large->loras;
  const auto same = [&](const ExtraConfig& known) {
    return path.empty() ? known.name == name : known.path == path;
  };
  auto found = std::ranges::find_if(loras, same);
  if (found == loras.end()) found = loras.insert(loras.end(), ExtraConfig{name, path});
  deployment->adapters.push_back({name, LoraId(found - loras.begin())});
}

absl::Status adapters_from(const ConfigFile& file, const tandem::config::v1::Deployment& in,
                           const ConfigFields& fields, ModelConfig* large,
                           DeploymentConfig* deployment) {
  TANDEM_NUMBER(fields, in, adapter_memory_bytes, int64_t{0}, int64_t{1} << 40,
                &deployment->adapter_memory_bytes);
  TANDEM_NUMBER(fields, in, max_adapters, 0, 1 << 16, &deployment->max_adapters);
  std::set<std::string> names;
  for (int i = 0; i < in.adapters_size(); ++i) {
    const auto& adapter = in.adapters(i);
    const std::string field = absl::StrCat("adapters[", i, "].");
    if (!valid_name(adapter.name())) {
      return fields.error(field + "name", quote_value(adapter.name()), kNameRule);
    }
    if (!names.insert(adapter.name()).second) {
      return fields.error(field + "name", quote_value(adapter.name()),
                          "a name that no other adapter of the deployment has");
    }
    std::string path;
    if (large->fake) {
      if (!adapter.path().empty()) {
        return fields.error(field + "path", quote_value(adapter.path()), "unset for a fake model");
      }
    } else {
      path = adapter.path().empty() ? "" : file.resolve(adapter.path());
      if (!is_adapter(path)) return fields.error(field + "path", quote_value(path), kAdapterRule);
      path = std::filesystem::path(path).lexically_normal().string();
      while (path.size() > 1 && path.back() == '/') path.pop_back();
    }
    add_adapter(adapter.name(), path, large, deployment);
  }
  return absl::OkStatus();
}

absl::Status check_adapter_names(const ConfigFile& file,
                                 const std::vector<DeploymentConfig>& deployments) {
  for (size_t d = 0; d < deployments.size(); ++d) {
    for (size_t i = 0; i < deployments[d].adapters.size(); ++i) {
      const std::string& name = deployments[d].adapters[i].name;
      if (std::ranges::find(deployments, name, &DeploymentConfig::name) == deployments.end()) {
        continue;
      }
      return file.error(absl::StrCat("deployments[", d, "].adapters[", i, "].name"),
                        quote_value(name), "a name that no deployment has");
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
