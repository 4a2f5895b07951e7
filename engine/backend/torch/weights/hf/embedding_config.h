// How a model embeds texts: the files of Sentence Transformers beside a checkpoint, or GGUF's
// pooling type.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/base/embedding.h"

namespace tandem {

// Reads 1_Pooling/config.json, modules.json with its Dense modules, and
// config_sentence_transformers.json of `directory`. Without them: the last token, normalized.
// Of a GGUF file: its pooling type and Dense modules. The last two files may lie beside it; the
// Dense modules of the GGUF file take precedence. Without prompts beside it: those of
// EmbeddingGemma and Qwen3-Embedding. INVALID_ARGUMENT for a broken file, and for modules and kinds
// of pooling that are not supported.
absl::StatusOr<EmbeddingSettings> load_embedding_config(const std::string& directory);

}  // namespace tandem
