// What a GGUF file says of its model, in the words of a Hugging Face directory: config.json,
// generation_config.json, and names, rows and norms of tensors.
//
// ggml's converter renames tensors; permutes the rows of q and k of Llama's, so that neighbours are
// rotated together; and adds 1 to Gemma's norms. Both are undone when elements are read
// (TensorView), nothing is computed anew.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf.h"
#include "engine/backend/torch/weights/hf_config.h"
#include "engine/backend/torch/weights/safetensors.h"

namespace tandem {

// Text of a config.json. Errors are INVALID_ARGUMENT: "name: key: value; allowed: range"; `name`
// stands for the file.
absl::StatusOr<std::string> gguf_config_json(const Gguf& gguf, absl::string_view name);

// Text of a generation_config.json: general.sampling.*, and the tokens that end a text.
absl::StatusOr<std::string> gguf_generation_json(const Gguf& gguf, absl::string_view name);

// Views by the names that Transformers gives them. INVALID_ARGUMENT, naming the tensor: one that
// belongs to no part of the model.
absl::StatusOr<std::map<std::string, TensorView>> gguf_tensors(const Gguf& gguf,
                                                               absl::string_view name);

}  // namespace tandem
