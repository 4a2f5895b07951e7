// The tokenizer of a GGUF file as the JSON texts that the `tokenizers` library and Transformers
// would have read beside the model.
//
//   tokenizer.ggml.model "gpt2": byte-level BPE, cut into words as tokenizer.ggml.pre names it;
//   "llama": SentencePiece's BPE, whose merges follow from the scores (of Gemma: from the order).
//
// Words are cut by the expressions of the original tokenizers, not by ggml's adaptations of them;
// where a Transformers class normalizes and the file is silent (NFC for Qwen 2), so does this.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf.h"

namespace tandem {

struct GgufTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // special tokens by name, chat templates
};

// INVALID_ARGUMENT, "name: key: value; allowed: range": missing or contradictory keys, tokens that
// occur twice, a kind of tokenizer that is not read. `name` stands for the file.
absl::StatusOr<GgufTokenizer> gguf_tokenizer(const Gguf& gguf, absl::string_view name);

}  // namespace tandem
