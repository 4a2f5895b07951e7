// Reads config.json of the architectures in architectures/.
//
// Accepts the spellings of Transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
// (rope_parameters, dtype). Unsupported settings that change results are rejected by name.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem {

// Reads `directory`/config.json, or a GGUF file's metadata. NOT_FOUND: no such file.
// INVALID_ARGUMENT: any other error, as "path: field: value; allowed: range".
absl::StatusOr<DecoderConfig> load_hf_config(const std::string& directory);

// The same for the text of a config.json. name: the file, for messages.
absl::StatusOr<DecoderConfig> parse_hf_config(const std::string& text, absl::string_view name);

}  // namespace tandem
