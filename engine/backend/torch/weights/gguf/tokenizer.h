// Converts the tokenizer of a GGUF file to tokenizer.json and tokenizer_config.json, as read by the
// `tokenizers` library and Transformers.
//
//   tokenizer.ggml.model "gpt2": byte-level BPE, pre-tokenized as named by tokenizer.ggml.pre
//   "llama": SentencePiece BPE. Merges are derived from the scores (Gemma: from the token order).
//   "t5": SentencePiece unigram (gguf/unigram.h)
//
// Pre-tokenization uses the regular expressions of the original tokenizers, not ggml's variants.
// Where a Transformers class normalizes and the file does not specify it (NFC for Qwen 2), so does
// the result.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/gguf/gguf.h"

namespace tandem {

struct GgufTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // names of special tokens, chat templates
};

// INVALID_ARGUMENT, "name: key: value; allowed: range": missing or contradictory keys, duplicate
// tokens, or an unsupported kind of tokenizer. name: the file.
absl::StatusOr<GgufTokenizer> gguf_tokenizer(const Gguf& gguf, absl::string_view name);

}  // namespace tandem
