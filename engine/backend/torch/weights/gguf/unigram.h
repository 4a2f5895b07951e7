// SentencePiece unigram tokenizers (arXiv:1804.10959), as used by T5.
#pragma once

#include <string>

#include "engine/backend/torch/weights/gguf/vocabulary.h"

namespace tandem {

// tokenizer.json of a file with tokenizer.ggml.model "t5". Texts get an end token unless the file
// specifies otherwise. Errors are recorded in `fields`.
std::string gguf_unigram(GgufFields& fields, const GgufVocabulary& vocabulary);

}  // namespace tandem
