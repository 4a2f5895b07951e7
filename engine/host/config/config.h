// From a deployment file (proto/tandem/config/v1) or `--model [NAME=]PATH` flags to the engine's
// configuration. The result is valid: it names only its own models and devices, directories that
// exist and numbers within their ranges. The content of model directories is checked by the loader.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/config.h"
#include "engine/host/config/config_file.h"

namespace tandem {

absl::StatusOr<EngineConfig> engine_config(const ConfigFile& file);

// A deployment for a running engine (Engine::load_deployment).
struct AddedDeployment {
  std::vector<ModelConfig> models;  // those that the file defines
  DeploymentConfig deployment;
};
// From a file with `models` and one of `deployments`, and nothing else. It may name `loaded` models
// too. knows_clients: clients are authenticated.
absl::StatusOr<AddedDeployment> added_deployment(const ConfigFile& file,
                                                 const std::vector<ModelConfig>& loaded,
                                                 const std::vector<DeviceConfig>& devices,
                                                 bool knows_clients);

// ConfigFile::parse or ::load, then engine_config.
absl::StatusOr<EngineConfig> parse_deployment(absl::string_view text, absl::string_view file_name);
absl::StatusOr<EngineConfig> load_deployment(const std::string& path);

// Flags of tandem-server, in place of a file.
struct ModelFlags {
  std::vector<std::string> models;  // "NAME=PATH" or "PATH"
  std::string device = "cpu:0";
  std::string dtype = "auto";
  std::string cpu_kernels = "own";
  std::string small;        // path of a small model for the only one of `models`; empty: none
  std::string small_masks;  // path of its parallel draft tokens; empty: none
  std::string small_dtype;  // of its weights; empty: dtype
  std::vector<std::string> adapters;  // LoRA adapters of the only one: "NAME=PATH" or "PATH"
};
absl::StatusOr<EngineConfig> from_models(const ModelFlags& flags);

// The two parts of "NAME=PATH"; without a name, that of the file or directory without ".gguf".
std::pair<std::string, std::string> name_and_path(const std::string& flag);

// One of kDTypeNames, or "float32" and so on.
absl::StatusOr<DType> parse_dtype(absl::string_view name);
// "own", "aten".
absl::StatusOr<CpuKernels> parse_cpu_kernels(absl::string_view name);

}  // namespace tandem
