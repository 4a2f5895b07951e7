// How a model embeds texts: the files of Sentence Transformers beside a checkpoint, or GGUF's
// pooling type.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/base/embedding.h"

namespace tandem {

// Reads 1_Pooling/config.json, modules.json with its Dense modules, and
// config_sentence_transformers.json of `directory`, or the metadata of a GGUF file. Without them:
// the last token, normalized. INVALID_ARGUMENT for a broken file, and for modules and kinds of
// pooling that are not supported.
absl::StatusOr<EmbeddingSettings> load_embedding_config(const std::string& directory);

}  // namespace tandem
