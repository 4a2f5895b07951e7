// EngineConfig from flags, in place of a deployment file.
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/device_name.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config.h"
#include "engine/host/config/config_adapters.h"
#include "engine/host/config/config_models.h"

namespace tandem {

absl::StatusOr<DType> parse_dtype(absl::string_view name) {
  constexpr std::pair<const char*, DType> kLongNames[] = {{"float32", DType::kFloat32},
                                                          {"bfloat16", DType::kBFloat16},
                                                          {"float16", DType::kFloat16},
                                                          {"float64", DType::kFloat64}};
  for (const auto& [alias, dtype] : kLongNames) {
    if (name == alias) return dtype;
  }
  for (const DType dtype :
       {DType::kAuto, DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
        DType::kInt8, DType::kInt4, DType::kQ40, DType::kFp8, DType::kStored}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      "auto, fp32 or float32, bf16 or bfloat16, fp16 or float16, fp64 or float64, int8, int4, "
      "q4_0, fp8, stored");
}

absl::StatusOr<CpuKernels> parse_cpu_kernels(absl::string_view name) {
  if (name == "own") return CpuKernels::kOwn;
  if (name == "aten") return CpuKernels::kAten;
  return absl::InvalidArgumentError("own, aten");
}

std::pair<std::string, std::string> name_and_path(const std::string& flag) {
  const size_t equals = flag.find('=');
  if (equals != std::string::npos) return {flag.substr(0, equals), flag.substr(equals + 1)};
  const std::filesystem::path path = flag;
  const std::filesystem::path last =
      path.has_filename() ? path.filename() : path.parent_path().filename();
  return {last.extension() == ".gguf" ? last.stem().string() : last.string(), flag};
}

namespace {

// Adds the adapters of --adapter. REQUIRES: the large model and the deployment are the first.
absl::Status add_adapters(const std::vector<std::string>& adapters, EngineConfig* out) {
  if (adapters.empty()) return absl::OkStatus();
  if (out->deployments.size() != 1) {
    return out_of_range("--adapter", quote_value(adapters[0]), "unset with several --model");
  }
  std::set<std::string> names = {out->deployments[0].name};
  for (const std::string& flag : adapters) {
    const auto [name, path] = name_and_path(flag);
    if (!valid_name(name)) return out_of_range("--adapter name", quote_value(name), kNameRule);
    if (!names.insert(name).second) {
      return out_of_range("--adapter name", quote_value(name), "a name that is not taken already");
    }
    if (!is_adapter(path)) {
      return out_of_range(absl::StrCat("--adapter ", name), quote_value(path), kAdapterRule);
    }
    add_adapter(name, path, &out->models[0], &out->deployments[0]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EngineConfig> from_models(const ModelFlags& flags) {
  EngineConfig out;
  if (flags.models.empty()) return out_of_range("--model", "none", "at least one [NAME=]PATH");
  const auto device = parse_device(flags.device);
  if (!device.ok()) return out_of_range("--device", quote_value(flags.device), kDeviceRule);
  const auto dtype = parse_dtype(flags.dtype);
  if (!dtype.ok())
    return out_of_range("--dtype", quote_value(flags.dtype), dtype.status().message());
  const std::string& small_type = flags.small_dtype.empty() ? flags.dtype : flags.small_dtype;
  const auto small_dtype = parse_dtype(small_type);
  if (!small_dtype.ok()) {
    return out_of_range("--small-dtype", quote_value(small_type), small_dtype.status().message());
  }
  const auto kernels = parse_cpu_kernels(flags.cpu_kernels);
  if (!kernels.ok()) {
    return out_of_range("--cpu-kernels", quote_value(flags.cpu_kernels),
                        kernels.status().message());
  }

  std::set<std::string> names;
  std::vector<std::string> all = flags.models;
  if (!flags.small.empty()) {
    if (all.size() > 1) {
      return out_of_range("--small", quote_value(flags.small), "unset with several --model");
    }
    all.push_back("small=" + flags.small);
  } else if (!flags.small_masks.empty()) {
    return out_of_range("--small-masks", quote_value(flags.small_masks), "unset without --small");
  } else if (!flags.small_dtype.empty()) {
    return out_of_range("--small-dtype", quote_value(flags.small_dtype), "unset without --small");
  }
  if (!flags.small_masks.empty() && !is_directory(flags.small_masks)) {
    return out_of_range("--small-masks", quote_value(flags.small_masks), "a directory that exists");
  }
  for (const std::string& flag : all) {
    ModelConfig model;
    const auto [name, path] = name_and_path(flag);
    model.name = name;
    model.path = find_model(path);
    model.device = device->name();
    model.dtype = *dtype;
    if (!valid_name(model.name)) {
      return out_of_range("--model name", quote_value(model.name), kNameRule);
    }
    if (!names.insert(model.name).second) {
      return out_of_range("--model name", quote_value(model.name),
                          "a name that is not taken already");
    }
    if (model.path.empty()) {
      return out_of_range(absl::StrCat("--model ", model.name), quote_value(path),
                          model_rule(path, path));
    }
    out.models.push_back(std::move(model));
  }
  add_missing_devices(&out);
  for (DeviceConfig& d : out.devices) d.cpu_kernels = *kernels;
  if (flags.small.empty()) {
    add_default_deployments(false, &out);
  } else {
    DeploymentConfig& pair = out.deployments.emplace_back();
    pair.name = pair.large = out.models[0].name;
    pair.small = out.models[1].name;
    out.models[1].dtype = *small_dtype;
    if (!flags.small_masks.empty()) {
      out.models[1].extras.push_back({"masks", flags.small_masks});
      for (const char* method : {"speculative", "bild"}) {
        pair.methods[method] = {{"adapter", std::string("masks")}};
      }
    }
  }
  TANDEM_RETURN_IF_ERROR(add_adapters(flags.adapters, &out));
  return out;
}

}  // namespace tandem
