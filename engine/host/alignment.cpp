#include "engine/host/alignment.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/quote.h"

namespace tandem {
namespace {

// Words, figures and signs, as every tokenizer of text has them.
constexpr const char* kProbe = "It's 20 o'clock (Zone B): the quick brown fox ran 3.14 miles.";

// Bytes from the text's beginning to the end of each token.
std::vector<int64_t> ends_of(const Tokenizer& tokenizer, absl::Span<const Token> tokens) {
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const Token t : tokens) {
    if (!tokenizer.is_special(t)) end += static_cast<int64_t>(tokenizer.token_bytes(t).size());
    ends.push_back(end);
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

std::vector<int> align_tokens(const Tokenizer& large_tokenizer, absl::Span<const Token> large,
                              const Tokenizer& small_tokenizer, absl::Span<const Token> small) {
  const std::vector<int64_t> there = ends_of(large_tokenizer, large);
  const std::vector<int64_t> here = ends_of(small_tokenizer, small);
  const int64_t whole_there = std::max<int64_t>(1, there.back());
  const int64_t whole_here = here.empty() ? 1 : std::max<int64_t>(1, here.back());
  std::vector<int> rows;
  for (const int64_t end : here) {
    const auto first = std::ranges::partition_point(
        there, [&](int64_t e) { return e * whole_here < end * whole_there; });
    const auto row = static_cast<int>(first - there.begin());
    rows.push_back(std::min(row, static_cast<int>(there.size()) - 1));
  }
  return rows;
}

}  // namespace tandem
