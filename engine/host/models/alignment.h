// Two tokenizers' cuts of one text, side by side: which row of a large model is a small model fed
// with at each of its own tokens (LLM-to-SLM, METHODS section 5).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/text/tokenizer.h"

namespace tandem {

// Why the tokens of this tokenizer cannot be laid beside another's; empty: they can, since together
// they spell the text (but for a blank before it) and hence say where in it they are.
std::string why_unaligned(const Tokenizer& tokenizer);

// By token of `small`, the index of the token of `large` that has its last byte; both were made of
// `text`. What a tokenizer put there has no bytes: a blank before the text, special tokens that the
// text does not spell where they are. Where normalizers made the two spell different lengths, ends
// are scaled to each other. REQUIRES: `large` is not empty.
std::vector<int> align_tokens(std::string_view text, const Tokenizer& large_tokenizer,
                              absl::Span<const Token> large, const Tokenizer& small_tokenizer,
                              absl::Span<const Token> small);

}  // namespace tandem
