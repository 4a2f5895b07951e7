// Aligns the tokens that two tokenizers make of one text: which row of the large model conditions
// each row of a small model with a distinct tokenizer (LLM-to-SLM).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/text/tokenizer.h"

namespace tandem {

// Why the tokens of this tokenizer cannot be aligned. Empty: they can, because they spell the text
// (except for a leading blank), which gives their positions in it.
std::string why_unaligned(const Tokenizer& tokenizer);

// For each token of `small`, the index of the token of `large` that has its last byte. Both encode
// `text`. Tokens that a tokenizer added have no bytes: a leading blank, special tokens that the
// text does not spell. If normalizers changed the length of the text, positions are scaled.
// REQUIRES: `large` is not empty.
std::vector<int> align_tokens(std::string_view text, const Tokenizer& large_tokenizer,
                              absl::Span<const Token> large, const Tokenizer& small_tokenizer,
                              absl::Span<const Token> small);

}  // namespace tandem
