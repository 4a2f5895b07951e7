// Requests and answers of vLLM's calls for LoRA adapters: POST /v1/load_lora_adapter and
// /v1/unload_lora_adapter. Pure functions; errors are INVALID_ARGUMENT.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/admin.pb.h"

namespace tandem::openai {

// {lora_name, lora_path, base_model_name, load_inplace}.
absl::StatusOr<v1::LoadAdapterRequest> load_adapter_from(const std::string& body);
// {lora_name, base_model_name}; lora_int_id has no effect.
absl::StatusOr<v1::UnloadAdapterRequest> unload_adapter_from(const std::string& body);

// vLLM's texts.
std::string adapter_loaded(const std::string& name);
std::string adapter_unloaded(const std::string& name);

// An error of the command with the names of the fields above.
absl::Status with_lora_names(const absl::Status& status);

}  // namespace tandem::openai
