// The devices and models of a deployment file.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/config.h"
#include "engine/host/config/config_fields.h"
#include "engine/host/config/config_file.h"

namespace tandem {

inline constexpr char kNameRule[] = "1 to 64 of letters, digits and . _ - /";

// Models of the Hugging Face hub in deployment files: "hf://ORG/REPO[@REVISION][:QUANT]".
inline constexpr char kHubScheme[] = "hf://";

bool valid_name(absl::string_view name);
bool is_directory(const std::string& path);
// A LoRA adapter: a PEFT directory or a GGUF file. It exists.
bool is_adapter(const std::string& path);
inline constexpr char kAdapterRule[] = "a directory or a .gguf file that exists";
// The model that `path` names: a GGUF file, a directory, or for a directory without config.json its
// only GGUF model (the first file of a split one). Empty: none; model_rule() says why.
std::string find_model(const std::string& path);
// Allowed values for a wrong model path. `written` is as the user wrote it.
std::string model_rule(absl::string_view written, const std::string& path);

// Checks a name, which must not be in `taken`, and adds it there.
absl::Status check_new_name(const ConfigFields& fields, const std::string& name,
                            std::set<std::string>* taken);

absl::StatusOr<DeviceConfig> device_from(const ConfigFile& file, int index);
absl::StatusOr<ModelConfig> model_from(const ConfigFile& file, int index,
                                       std::set<std::string>* names);
// The devices of model `index` must be listed, and have the same kernels.
absl::Status check_devices(const ConfigFile& file, int index, const ModelConfig& model,
                           const std::vector<DeviceConfig>& devices);
// Adds devices that models name and the configuration does not list, those of shards first, in
// their order.
void add_missing_devices(EngineConfig* config);
// Adds a deployment for each model, under its name.
void add_default_deployments(bool prefix_cache_per_client, EngineConfig* config);

}  // namespace tandem
