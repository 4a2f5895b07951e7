// A tiny random model (tests/engine/backend/torch/tiny_model.h) as a Hugging Face directory, so
// that an engine can load it.
#pragma once

#ifdef TANDEM_WITH_TORCH
#include <string>

namespace tandem::test {

// A context of 1024. Its tokenizer has one token for each of 64 printable characters, whatever the
// vocabulary.
void write_tiny_model(const std::string& directory, uint64_t seed, int vocab = 64);

}  // namespace tandem::test
#endif
