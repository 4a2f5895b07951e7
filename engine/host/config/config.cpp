#include "engine/host/config/config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config_adapters.h"
#include "engine/host/config/config_fields.h"
#include "engine/host/config/config_limits.h"
#include "engine/host/config/config_methods.h"
#include "engine/host/config/config_models.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

constexpr int64_t kMostHistoryTokens = 1 << 24;
constexpr double kMostIdleSeconds = 365.0 * 24 * 3600;

std::string names_of(const std::vector<ModelConfig>& models) {
  return absl::StrJoin(models, ", ", [](std::string* out, const ModelConfig& m) {
    absl::StrAppend(out, quote_value(m.name));
  });
}

// Are clients authenticated?
bool knows_clients(const pb::Config& in) {
  return !in.server().bearer_token_file().empty() || !in.server().tls().client_ca().empty();
}

// Proto3 keeps numbers of enums that it does not know, but the text format has only known names.
void answer_formats_from(const pb::Deployment& in, DeploymentConfig* out) {
  if (in.tool_format() != pb::Deployment::TOOL_FORMAT_UNSPECIFIED) {
    out->tool_format = absl::AsciiStrToLower(
        absl::StripPrefix(pb::Deployment::ToolFormat_Name(in.tool_format()), "TOOL_FORMAT_"));
  }
  switch (in.reasoning_format()) {
    case pb::Deployment::REASONING_FORMAT_NONE:
      out->no_reasoning = true;
      break;
    case pb::Deployment::REASONING_FORMAT_THINK:
      out->reasoning_open = "<think>";
      out->reasoning_close = "</think>";
      break;
    case pb::Deployment::REASONING_FORMAT_THINK_TOKEN:
      out->reasoning_open = "[THINK]";
      out->reasoning_close = "[/THINK]";
      break;
    default:
      break;
  }
}

absl::StatusOr<DeploymentConfig> deployment_from(const ConfigFile& file, int index,
                                                 std::vector<ModelConfig>& models,
                                                 std::set<std::string>* names, bool clients) {
  const pb::Deployment& in = file.proto().deployments(index);
  const ConfigFields fields(file, absl::StrCat("deployments[", index, "]."));
  TANDEM_RETURN_IF_ERROR(check_new_name(fields, in.name(), names));
  const auto find = [&](const std::string& name) {
    return std::ranges::find(models, name, &ModelConfig::name);
  };
  const auto large = find(in.large());
  if (large == models.end()) {
    return fields.error("large", quote_value(in.large()), names_of(models));
  }
  if (!in.small().empty() && find(in.small()) == models.end()) {
    return fields.error("small", quote_value(in.small()), names_of(models));
  }
  if (in.small() == in.large()) {
    return fields.error("small", quote_value(in.small()), "a model other than `large`, or none");
  }
  DeploymentConfig out;
  out.name = in.name();
  out.large = in.large();
  out.small = in.small();
  out.prefix_cache_per_client =
      in.has_prefix_cache_per_client() ? in.prefix_cache_per_client() : clients;
  TANDEM_NUMBER(fields, in, history_tokens, int64_t{0}, kMostHistoryTokens, &out.history_tokens);
  TANDEM_NUMBER(fields, in, unload_after_idle_seconds, 0.0, kMostIdleSeconds,
                &out.unload_after_idle_seconds);
  answer_formats_from(in, &out);
  TANDEM_RETURN_IF_ERROR(adapters_from(file, in, fields, &*large, &out));
  TANDEM_RETURN_IF_ERROR(method_defaults_from(in, fields, &out));
  return out;
}

}  // namespace

absl::StatusOr<EngineConfig> engine_config(const ConfigFile& file) {
  const pb::Config& in = file.proto();
  EngineConfig out;

  std::set<std::string> device_names;
  for (int i = 0; i < in.devices_size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(DeviceConfig device, device_from(file, i));
    if (!device_names.insert(device.name()).second) {
      return file.error(absl::StrCat("devices[", i, "].name"), quote_value(device.name()),
                        "a device that is not listed already");
    }
    out.devices.push_back(device);
  }

  if (in.models().empty()) return file.error("models", "none", "at least one");
  std::set<std::string> model_names;
  for (int i = 0; i < in.models_size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(ModelConfig model, model_from(file, i, &model_names));
    out.models.push_back(std::move(model));
  }
  if (in.devices().empty()) add_missing_devices(&out);
  for (int i = 0; i < in.models_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(check_devices(file, i, out.models[static_cast<size_t>(i)], out.devices));
  }

  std::set<std::string> deployment_names;
  for (int i = 0; i < in.deployments_size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(
        DeploymentConfig deployment,
        deployment_from(file, i, out.models, &deployment_names, knows_clients(in)));
    out.deployments.push_back(std::move(deployment));
  }
  TANDEM_RETURN_IF_ERROR(check_adapter_names(file, out.deployments));
  if (in.deployments().empty()) add_default_deployments(knows_clients(in), &out);

  TANDEM_RETURN_IF_ERROR(limits_from(file, out.devices, &out.limits));
  TANDEM_NUMBER(ConfigFields(file, ""), in, text_threads, 1, 64, &out.text_threads);
  TANDEM_NUMBER(ConfigFields(file, ""), in, tokenize_threads, 1, 64, &out.tokenize_threads);
  if (!in.server().statistics_file().empty()) {
    out.statistics_file = file.resolve(in.server().statistics_file());
  }
  if (!in.server().prefix_store().empty()) {
    out.prefix_store = file.resolve(in.server().prefix_store());
  }
  TANDEM_NUMBER(ConfigFields(file, "server."), in.server(), prefix_store_bytes, int64_t{1} << 20,
                int64_t{1} << 40, &out.prefix_store_bytes);
  return out;
}

absl::StatusOr<AddedDeployment> added_deployment(const ConfigFile& file,
                                                 const std::vector<ModelConfig>& loaded,
                                                 const std::vector<DeviceConfig>& devices,
                                                 bool knows_clients) {
  pb::Config other = file.proto();
  other.clear_models();
  other.clear_deployments();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  other.GetReflection()->ListFields(other, &fields);
  if (!fields.empty()) {
    return file.error(fields.front()->name(), "set", "models, deployments");
  }
  if (file.proto().deployments_size() != 1) {
    return file.error("deployments", absl::StrCat(file.proto().deployments_size()), "1");
  }
  std::set<std::string> model_names, deployment_names;
  std::vector<ModelConfig> models;
  for (int i = 0; i < file.proto().models_size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(ModelConfig model, model_from(file, i, &model_names));
    TANDEM_RETURN_IF_ERROR(check_devices(file, i, model, devices));
    models.push_back(std::move(model));
  }
  const size_t defined = models.size();
  for (const ModelConfig& model : loaded) {
    if (!model_names.contains(model.name)) models.push_back(model);
  }
  AddedDeployment out;
  TANDEM_ASSIGN_OR_RETURN(out.deployment,
                          deployment_from(file, 0, models, &deployment_names, knows_clients));
  models.resize(defined);
  out.models = std::move(models);
  return out;
}

absl::StatusOr<EngineConfig> parse_deployment(absl::string_view text, absl::string_view file_name) {
  TANDEM_ASSIGN_OR_RETURN(const ConfigFile file, ConfigFile::parse(text, file_name));
  return engine_config(file);
}

absl::StatusOr<EngineConfig> load_deployment(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const ConfigFile file, ConfigFile::load(path));
  return engine_config(file);
}

}  // namespace tandem
