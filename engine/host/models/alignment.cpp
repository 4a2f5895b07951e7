#include "engine/host/models/alignment.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/quote.h"

namespace tandem {
namespace {

// Words, digits and signs that every text tokenizer can spell.
constexpr const char* kProbe = "It's 20 o'clock (Zone B): the quick brown fox ran 3.14 miles.";

// Where in `text` a token ends that begins at `at`, or after the blanks there: some added tokens
// strip blanks.
size_t end_of(std::string_view text, size_t at, std::string_view piece, bool special) {
  const std::string_view rest = text.substr(std::min(at, text.size()));
  if (rest.starts_with(piece)) return at + piece.size();
  const size_t blanks = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
  const std::string_view word = piece.substr(piece.starts_with(' ') ? 1 : 0);  // SentencePiece's
  if (rest.substr(blanks).starts_with(word)) return at + blanks + word.size();
  return special ? at : at + piece.size();
}

// The byte offset at which each token ends.
std::vector<int64_t> ends_of(const Tokenizer& tokenizer, absl::Span<const Token> tokens,
                             std::string_view text) {
  std::vector<int64_t> ends;
  size_t end = 0;
  for (const Token t : tokens) {
    end = end_of(text, end, tokenizer.token_bytes(t), tokenizer.is_special(t));
    ends.push_back(static_cast<int64_t>(end));
  }
  return ends;
}

}  // namespace

std::string why_unaligned(const Tokenizer& tokenizer) {
  const auto tokens = tokenizer.encode(kProbe, false);
  if (!tokens.ok()) return std::string(tokens.status().message());
  std::string spelled;
  for (const Token t : *tokens) spelled += tokenizer.token_bytes(t);
  if (absl::StripPrefix(spelled, " ") == kProbe) return "";
  return absl::StrCat("its tokens spell ", quote_value(spelled), " for ", quote_value(kProbe));
}

std::vector<int> align_tokens(std::string_view text, const Tokenizer& large_tokenizer,
                              absl::Span<const Token> large, const Tokenizer& small_tokenizer,
                              absl::Span<const Token> small) {
  const std::vector<int64_t> large_ends = ends_of(large_tokenizer, large, text);
  const std::vector<int64_t> small_ends = ends_of(small_tokenizer, small, text);
  const int64_t large_length = std::max<int64_t>(1, large_ends.back());
  const int64_t small_length = small_ends.empty() ? 1 : std::max<int64_t>(1, small_ends.back());
  std::vector<int> rows;
  for (const int64_t end : small_ends) {
    const auto first = std::ranges::partition_point(
        large_ends, [&](int64_t e) { return e * small_length < end * large_length; });
    const auto row = static_cast<int>(first - large_ends.begin());
    rows.push_back(std::min(row, static_cast<int>(large_ends.size()) - 1));
  }
  return rows;
}

}  // namespace tandem
