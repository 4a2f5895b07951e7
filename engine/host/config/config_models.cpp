#include "engine/host/config/config_models.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/base/device_name.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/config/config.h"

namespace tandem {
namespace {

namespace pb = tandem::config::v1;

constexpr char kModelRule[] = "a directory that exists, or a .gguf file";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

std::string names_of(const std::vector<DeviceConfig>& devices) {
  return absl::StrJoin(devices, ", ", [](std::string* out, const DeviceConfig& d) {
    absl::StrAppend(out, quote_value(d.name()));
  });
}

const DeviceConfig* find_device(const std::vector<DeviceConfig>& devices, absl::string_view name) {
  const auto found = std::ranges::find(devices, name, &DeviceConfig::name);
  return found == devices.end() ? nullptr : &*found;
}

absl::StatusOr<FakeModelConfig> fake_from(const pb::Fake& in, const ConfigFields& fields) {
  FakeModelConfig out;
  const auto number = [&](absl::string_view name, bool set, auto value, auto min, auto max,
                          auto* to) {
    return fields.number(absl::StrCat("fake.", name), set, value, min, max, to);
  };
  TANDEM_RETURN_IF_ERROR(
      number("vocab_size", in.has_vocab_size(), in.vocab_size(), 257, 1 << 20, &out.vocab_size));
  TANDEM_RETURN_IF_ERROR(number("layers", in.has_layers(), in.layers(), 1, 1024, &out.layers));
  TANDEM_RETURN_IF_ERROR(number("max_positions", in.has_max_positions(), in.max_positions(), 16,
                                1 << 24, &out.max_positions));
  TANDEM_RETURN_IF_ERROR(number("pass_seconds", in.has_pass_seconds(), in.pass_seconds(), 0.0, 60.0,
                                &out.pass_seconds));
  TANDEM_RETURN_IF_ERROR(
      number("row_seconds", in.has_row_seconds(), in.row_seconds(), 0.0, 60.0, &out.row_seconds));
  if (in.has_seed()) out.seed = in.seed();
  out.trace_file = in.trace_file();
  if (in.has_check_memory()) out.check_memory = in.check_memory();
  out.answers.assign(in.answers().begin(), in.answers().end());
  out.chat_template = in.chat_template();
  if (!out.check_memory && out.trace_file.empty()) {
    return fields.error("fake.check_memory", "false", "true where there is no trace_file");
  }
  return out;
}

// Whether a GGUF file is a model of its own: not a later file of a split model, nor an encoder of
// images.
bool is_first_gguf(const std::string& name) {
  if (!absl::EndsWith(name, ".gguf") || absl::StrContains(name, "mmproj")) return false;
  constexpr size_t kNumber = 5;  // digits, in "NAME-00001-of-00003.gguf"
  const size_t of = name.rfind("-of-");
  if (of == std::string::npos || of < kNumber + 1 || name[of - kNumber - 1] != '-') return true;
  const std::string number = name.substr(of - kNumber, kNumber);
  return number == "00001" || !std::ranges::all_of(number, absl::ascii_isdigit);
}

// The GGUF models of a directory that is not a Hugging Face model, in order.
std::vector<std::string> gguf_models(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  if (std::filesystem::exists(directory + "/config.json", error)) return found;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (is_first_gguf(name) && it->is_regular_file(ignored)) found.push_back(it->path().string());
  }
  std::ranges::sort(found);
  return found;
}

DType dtype_from(pb::Model::Dtype dtype) {
  const std::string name = pb::Model::Dtype_Name(dtype);  // "DTYPE_FP32"
  return parse_dtype(absl::AsciiStrToLower(absl::StripPrefix(name, "DTYPE_")))
      .value_or(DType::kAuto);
}

// Fills in `layers` and `extras`.
absl::Status parts_from(const ConfigFile& file, const pb::Model& in, const ConfigFields& fields,
                        ModelConfig* out) {
  TANDEM_NUMBER(fields, in, layers, 1, 1000, &out->layers);
  if (out->fake && in.has_layers()) {
    return fields.error("layers", absl::StrCat(in.layers()), "unset for a fake model");
  }
  if (out->fake && in.extras_size() > 0) {
    return fields.error("extras", absl::StrCat(in.extras_size()), "none for a fake model");
  }
  std::set<std::string> names;
  for (int i = 0; i < in.extras_size(); ++i) {
    const pb::Extra& extra = in.extras(i);
    const std::string field = absl::StrCat("extras[", i, "].");
    if (extra.name().empty() || !names.insert(extra.name()).second) {
      return fields.error(field + "name", quote_value(extra.name()),
                          "a name that no other extra of the model has");
    }
    const std::string path = file.resolve(extra.path());
    std::error_code error;
    if (extra.path().empty() || !is_directory(path)) {
      return fields.error(field + "path", quote_value(extra.path().empty() ? "" : path),
                          "a directory that exists");
    }
    out->extras.push_back({extra.name(), path});
  }
  return absl::OkStatus();
}

absl::Status shards_from(const pb::Model& in, const ConfigFields& fields, ModelConfig* out) {
  std::set<std::string> taken;
  for (int i = 0; i < in.shards_size(); ++i) {
    const pb::Shard& shard = in.shards(i);
    const std::string field = absl::StrCat("shards[", i, "].");
    const auto device = parse_device(shard.device());
    if (!device.ok())
      return fields.error(field + "device", quote_value(shard.device()), kDeviceRule);
    const auto error = [&](absl::string_view allowed) {
      return fields.error(field + "device", quote_value(shard.device()), allowed);
    };
    if (device->kind != DeviceKind::kCpu) return error("CPU devices");
    if (!taken.insert(device->name()).second) return error("each device once");
    if (i == 0 && !in.has_device()) out->device = device->name();
    if (i == 0 && out->device != device->name())
      return error(absl::StrCat(out->device, ", `device`"));
    int layers = 0;
    TANDEM_RETURN_IF_ERROR(fields.number(field + "layers", true, shard.layers(), 1, 1000, &layers));
    out->shards.push_back({device->name(), layers});
  }
  if (out->shards.empty()) return absl::OkStatus();
  const std::string count = absl::StrCat(out->shards.size());
  if (out->shards.size() == 1) return fields.error("shards", count, "2 or more, or none");
  if (out->fake) return fields.error("shards", count, "none for a fake model");
  if (in.replicas_size() > 0)
    return fields.error("shards", count, "none for a model with replicas");
  return absl::OkStatus();
}

absl::Status replicas_from(const pb::Model& in, const ConfigFields& fields, ModelConfig* out) {
  const auto first = parse_device(out->device);
  std::set<std::string> taken = {out->device};
  for (int i = 0; i < in.replicas_size(); ++i) {
    const std::string& name = in.replicas(i);
    const auto error = [&](absl::string_view allowed) {
      return fields.error(absl::StrCat("replicas[", i, "]"), quote_value(name), allowed);
    };
    const auto device = parse_device(name);
    if (!device.ok()) return error(kDeviceRule);
    if (device->kind != first->kind) {
      return error(absl::StrCat("devices of one kind, as ", out->device));
    }
    if (!taken.insert(device->name()).second) return error("each device once, `device` included");
    out->replicas.push_back(device->name());
  }
  if (out->fake && !out->fake->trace_file.empty() && !out->replicas.empty()) {
    return fields.error("fake.trace_file", quote_value(out->fake->trace_file),
                        "unset for a model with replicas");
  }
  return absl::OkStatus();
}

absl::Status adapter_dtype_from(const pb::Model& in, const ConfigFields& fields, ModelConfig* out) {
  out->adapter_dtype = dtype_from(in.adapter_dtype());
  const std::string& name = pb::Model::Dtype_Name(in.adapter_dtype());
  switch (out->adapter_dtype) {
    case DType::kAuto:
      return absl::OkStatus();
    case DType::kFloat32:
    case DType::kBFloat16:
    case DType::kFloat16:
      if (parse_device(out->device)->kind == DeviceKind::kCpu) return absl::OkStatus();
      return fields.error("adapter_dtype", name, "unset on a CUDA device");
    default:
      return fields.error("adapter_dtype", name, "DTYPE_FP32, DTYPE_BF16, DTYPE_FP16");
  }
}

bool is_gguf_file(const std::string& path) {
  std::error_code error;
  return absl::EndsWith(path, ".gguf") && std::filesystem::is_regular_file(path, error);
}

}  // namespace

bool valid_name(absl::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("._-/", absl::string_view(&c, 1));
  });
}

bool is_directory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

bool is_adapter(const std::string& path) { return is_directory(path) || is_gguf_file(path); }

std::string find_model(const std::string& path) {
  if (!is_directory(path)) return is_gguf_file(path) ? path : "";
  const std::vector<std::string> models = gguf_models(path);
  if (models.empty()) return path;
  return models.size() == 1 ? models[0] : "";
}

std::string model_rule(absl::string_view written, const std::string& path) {
  if (absl::StartsWith(written, "~")) {
    return "a path with the home directory written out: ~ means nothing outside a shell";
  }
  if (absl::StartsWith(written, kHubScheme)) {
    return "hf://ORG/REPO[@REVISION][:QUANT], in a file that tandem-server reads";
  }
  if (absl::EndsWith(written, ".gguf")) return "a .gguf file that exists";
  if (is_directory(path)) {
    return absl::StrCat("one of its .gguf files: ", absl::StrJoin(gguf_models(path), ", "));
  }
  const bool relative = !absl::StartsWith(written, "/") && !absl::StartsWith(written, ".");
  if (relative && std::count(written.begin(), written.end(), '/') == 1) {
    return absl::StrCat(kModelRule, "; a file names a model of the Hugging Face hub as hf://",
                        written);
  }
  return kModelRule;
}

absl::Status check_new_name(const ConfigFields& fields, const std::string& name,
                            std::set<std::string>* taken) {
  if (!valid_name(name)) return fields.error("name", quote_value(name), kNameRule);
  if (!taken->insert(name).second) {
    return fields.error("name", quote_value(name), "a name that is not taken already");
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceConfig> device_from(const ConfigFile& file, int index) {
  const pb::Device& in = file.proto().devices(index);
  const ConfigFields fields(file, absl::StrCat("devices[", index, "]."));
  auto device = parse_device(in.name());
  if (!device.ok()) return fields.error("name", quote_value(in.name()), kDeviceRule);
  if (in.has_threads() && in.threads() != 0 && device->kind != DeviceKind::kCpu) {
    return fields.error("threads", absl::StrCat(in.threads()), "unset on a CUDA device");
  }
  TANDEM_NUMBER(fields, in, threads, 0, 1024, &device->threads);
  TANDEM_NUMBER(fields, in, memory_bytes, int64_t{0}, kMaxInt64, &device->memory_bytes);
  if (device->kind != DeviceKind::kCpu) {
    if (in.pin_threads()) return fields.error("pin_threads", "true", "unset on a CUDA device");
    if (in.cpu_kernels() != pb::Device::CPU_KERNELS_UNSPECIFIED) {
      return fields.error("cpu_kernels", pb::Device::CpuKernels_Name(in.cpu_kernels()),
                          "unset on a CUDA device");
    }
    if (in.has_graphs()) device->graphs = in.graphs();
  } else if (in.has_graphs()) {
    return fields.error("graphs", in.graphs() ? "true" : "false", "unset on a CPU device");
  }
  if (in.has_packed_products()) device->packed_products = in.packed_products();
  device->pin_threads = in.pin_threads();
  if (in.cpu_kernels() == pb::Device::CPU_KERNELS_ATEN) device->cpu_kernels = CpuKernels::kAten;
  return *device;
}

absl::StatusOr<ModelConfig> model_from(const ConfigFile& file, int index,
                                       std::set<std::string>* names) {
  const pb::Model& in = file.proto().models(index);
  const ConfigFields fields(file, absl::StrCat("models[", index, "]."));
  ModelConfig out;
  TANDEM_RETURN_IF_ERROR(check_new_name(fields, in.name(), names));
  out.name = in.name();
  if (in.has_fake()) {
    TANDEM_ASSIGN_OR_RETURN(out.fake, fake_from(in.fake(), fields));
  } else if (in.path().empty()) {
    return fields.error("path", quote_value(""),
                        "a Hugging Face directory or a GGUF file (or `fake {}`)");
  } else {
    const std::string path = file.resolve(in.path());
    out.path = find_model(path);
    if (out.path.empty()) {
      return fields.error("path", quote_value(path), model_rule(in.path(), path));
    }
  }
  if (in.has_device()) {
    auto device = parse_device(in.device());
    if (!device.ok()) return fields.error("device", quote_value(in.device()), kDeviceRule);
    out.device = device->name();
  }
  TANDEM_RETURN_IF_ERROR(shards_from(in, fields, &out));
  TANDEM_RETURN_IF_ERROR(replicas_from(in, fields, &out));
  out.dtype = dtype_from(in.dtype());
  out.kv_dtype = dtype_from(in.kv_dtype());
  if (out.kv_dtype != DType::kAuto && out.kv_dtype != DType::kFloat32 &&
      out.kv_dtype != DType::kBFloat16) {
    return fields.error("kv_dtype", pb::Model::Dtype_Name(in.kv_dtype()), "DTYPE_FP32, DTYPE_BF16");
  }
  TANDEM_RETURN_IF_ERROR(adapter_dtype_from(in, fields, &out));
  TANDEM_NUMBER(fields, in, page_rows, 1, 1024, &out.page_rows);
  TANDEM_NUMBER(fields, in, kv_pages, int64_t{0}, kMaxInt32, &out.kv_pages);
  if (in.has_prefix_cache()) out.prefix_cache = in.prefix_cache();
  TANDEM_RETURN_IF_ERROR(parts_from(file, in, fields, &out));
  return out;
}

absl::Status check_devices(const ConfigFile& file, int index, const ModelConfig& model,
                           const std::vector<DeviceConfig>& devices) {
  const ConfigFields fields(file, absl::StrCat("models[", index, "]."));
  const DeviceConfig* const first = find_device(devices, model.device);
  if (!first) return fields.error("device", quote_value(model.device), names_of(devices));
  const auto check = [&](const std::string& field, const std::string& name) -> absl::Status {
    const DeviceConfig* const device = find_device(devices, name);
    if (!device) return fields.error(field, quote_value(name), names_of(devices));
    if (device->cpu_kernels == first->cpu_kernels) return absl::OkStatus();
    return fields.error(field, quote_value(name),
                        absl::StrCat("devices with the cpu_kernels of ", model.device));
  };
  for (size_t i = 0; i < model.replicas.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(check(absl::StrCat("replicas[", i, "]"), model.replicas[i]));
  }
  for (size_t i = 0; i < model.shards.size(); ++i) {
    const std::string field = absl::StrCat("shards[", i, "].device");
    TANDEM_RETURN_IF_ERROR(check(field, model.shards[i].device));
    // Devices divide their memory in the order of the list.
    if (find_device(devices, model.shards[i].device) < first) {
      return fields.error(field, quote_value(model.shards[i].device),
                          absl::StrCat("devices listed behind ", model.device));
    }
  }
  return absl::OkStatus();
}

void add_missing_devices(EngineConfig* config) {
  std::vector<std::string> names;
  for (const ModelConfig& model : config->models) {
    for (const ShardConfig& shard : model.shards) names.push_back(shard.device);
  }
  for (const ModelConfig& model : config->models) {
    names.push_back(model.device);
    names.insert(names.end(), model.replicas.begin(), model.replicas.end());
  }
  for (const std::string& name : names) {
    if (!find_device(config->devices, name)) config->devices.push_back(*parse_device(name));
  }
}

void add_default_deployments(bool prefix_cache_per_client, EngineConfig* config) {
  for (const ModelConfig& model : config->models) {
    DeploymentConfig deployment;
    deployment.name = deployment.large = model.name;
    deployment.prefix_cache_per_client = prefix_cache_per_client;
    config->deployments.push_back(std::move(deployment));
  }
}

}  // namespace tandem
