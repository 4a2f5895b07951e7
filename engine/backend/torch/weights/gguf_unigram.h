// SentencePiece's other kind of tokenizer: the likeliest pieces of a text (arXiv:1804.10959). T5's.
#pragma once

#include <string>

#include "engine/backend/torch/weights/gguf_vocabulary.h"

namespace tandem {

// tokenizer.json of a file whose tokenizer.ggml.model is "t5". Texts end with the end token unless
// the file says otherwise. What is wrong is said by `fields`.
std::string gguf_unigram(GgufFields& fields, const GgufVocabulary& vocabulary);

}  // namespace tandem
