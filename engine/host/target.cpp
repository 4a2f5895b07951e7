#include "engine/host/target.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/suggest.h"

namespace tandem {
namespace {

constexpr char kSeparator = ':';

std::string quoted(const std::vector<std::string>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, "\"", name, "\"");
  });
}

std::string full_name(const Deployment& d, const std::string& adapter) {
  return absl::StrCat(d.name, std::string(1, kSeparator), adapter);
}

// `field: "value"; did you mean "near"? known: "a", "b"`
absl::Status unknown(absl::string_view field, absl::string_view value,
                     const std::vector<std::string>& names, absl::string_view reason) {
  const std::string near = nearest(value, names);
  return with_reason(
      absl::NotFoundError(absl::StrCat(field, ": ", quote_value(value), "; ",
                                       near.empty() ? "" : "did you mean \"" + near + "\"? ",
                                       "known: ", names.empty() ? "none" : quoted(names))),
      reason);
}

absl::Status unknown_model(const DeploymentTable& deployments, absl::string_view model) {
  std::vector<std::string> names;
  for (const DeploymentRef& d : deployments) names.push_back(d->name);
  for (const DeploymentRef& d : deployments) {
    for (const std::string& a : d->adapters->names()) names.push_back(full_name(*d, a));
  }
  return unknown("model", model, names, "MODEL_NOT_FOUND");
}

// The deployments that have an adapter of this name.
std::vector<Target> owners_of(const DeploymentTable& deployments, absl::string_view name) {
  std::vector<Target> owners;
  for (const DeploymentRef& d : deployments) {
    if (AdapterRef a = d->adapters->find(name)) owners.push_back({d, std::move(a)});
  }
  return owners;
}

absl::StatusOr<Target> find_model(const DeploymentTable& deployments, absl::string_view model) {
  const size_t separator = model.find(kSeparator);
  for (const DeploymentRef& d : deployments) {
    if (d->name == model) return Target{d, nullptr};
    if (separator == absl::string_view::npos || d->name != model.substr(0, separator)) continue;
    const absl::string_view name = model.substr(separator + 1);
    if (AdapterRef a = d->adapters->find(name)) return Target{d, std::move(a)};
    return unknown_model(deployments, model);
  }
  const std::vector<Target> owners = owners_of(deployments, model);
  if (owners.empty()) return unknown_model(deployments, model);
  if (owners.size() == 1) return owners.front();
  std::vector<std::string> names;
  for (const Target& t : owners) names.push_back(full_name(*t.deployment, t.adapter->name));
  return with_reason(absl::NotFoundError(absl::StrCat(
                         "model: ", quote_value(model),
                         ", an adapter of several deployments; known: ", quoted(names))),
                     "MODEL_NOT_FOUND");
}

}  // namespace

absl::StatusOr<AdapterRef> known_adapter(const Deployment& deployment, absl::string_view name) {
  if (name.empty()) return AdapterRef();
  if (AdapterRef found = deployment.adapters->find(name)) return found;
  return unknown("adapter", name, deployment.adapters->names(), "ADAPTER_NOT_FOUND");
}

absl::StatusOr<Target> find_target(const DeploymentTable& deployments, absl::string_view model,
                                   absl::string_view adapter) {
  TANDEM_ASSIGN_OR_RETURN(Target target, find_model(deployments, model));
  if (target.adapter == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(target.adapter, known_adapter(*target.deployment, adapter));
  } else if (!adapter.empty() && adapter != target.adapter->name) {
    return out_of_range("adapter", quote_value(adapter),
                        absl::StrCat("unset, or \"", target.adapter->name, "\" as in model"));
  }
  return target;
}

}  // namespace tandem
