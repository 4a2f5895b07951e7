// The model of a GGUF file in terms of a Hugging Face directory: config.json,
// generation_config.json, and tensors by their Hugging Face names.
//
// ggml's converter renames tensors, permutes the rows of Llama's q and k so that adjacent rows are
// rotated together, and adds 1 to Gemma's norm weights. TensorView undoes the latter two on read;
// no data is copied.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf/gguf.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "engine/base/embedding.h"

namespace tandem {

// Text of a config.json. Errors are INVALID_ARGUMENT: "name: key: value; allowed: range"; name: the
// file.
absl::StatusOr<std::string> gguf_config_json(const Gguf& gguf, absl::string_view name);

// Text of a generation_config.json: general.sampling.* and the end-of-text tokens.
absl::StatusOr<std::string> gguf_generation_json(const Gguf& gguf, absl::string_view name);

// A view of a tensor's bytes, in the order of the file.
TensorView view_of(const GgufTensor& tensor);

// Tensors by Transformers' names. INVALID_ARGUMENT: a tensor that belongs to no part of the model.
absl::StatusOr<std::map<std::string, TensorView>> gguf_tensors(const Gguf& gguf,
                                                               absl::string_view name);

// The Dense modules of EmbeddingGemma, in order and without activation; empty: the file has none.
// INVALID_ARGUMENT: they do not fit each other, or have a block with a non-finite scale.
absl::StatusOr<std::vector<DenseLayer>> gguf_dense(const Gguf& gguf, absl::string_view name);

}  // namespace tandem
