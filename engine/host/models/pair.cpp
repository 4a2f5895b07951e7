#include "engine/host/models/pair.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Output matrices are padded for speed, differently within a family (Qwen 2: 151936 and 152064 rows
// for 151665 tokens).
constexpr int kMostPadding = 128;

}  // namespace

absl::Status check_same_tokens(const std::string& field, const LoadedModel& large,
                               const LoadedModel& small) {
  const auto differ = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": \"", small.config.name, "\" and large \"", large.config.name,
                     "\" have different ", what,
                     "; allowed: one shared vocabulary, followed in one of them by at most ",
                     kMostPadding, " ids of padding"));
  };
  const auto [fewer, more] = std::minmax(small.shape.vocab_size, large.shape.vocab_size);
  const std::string sizes =
      absl::StrCat("vocabulary sizes (", small.shape.vocab_size, ", ", large.shape.vocab_size, ")");
  if (more - fewer > kMostPadding) return differ(sizes);
  const Token tokens = std::max(large.tokenizer->vocab_size(), small.tokenizer->vocab_size());
  for (Token t = 0; t < tokens; ++t) {
    const std::string in_large = large.tokenizer->token_text(t);
    const std::string in_small = small.tokenizer->token_text(t);
    if (in_large != in_small) {
      return differ(absl::StrCat("tokens for id ", t, " (", quote_value(in_small), ", ",
                                 quote_value(in_large), ")"));
    }
    if (t >= fewer && t < more && !in_large.empty()) {
      return differ(
          absl::StrCat(sizes, ", and id ", t, " is not padding but ", quote_value(in_large)));
    }
  }
  return absl::OkStatus();
}

absl::Status check_same_kind(const std::string& field, const LoadedModel& large,
                             const LoadedModel& small) {
  const std::string name = quote_value(small.config.name);
  if ((large.encoder == nullptr) != (small.encoder == nullptr)) {
    return out_of_range(field, name,
                        absl::StrCat(large.encoder == nullptr ? "models without an encoder, like "
                                                              : "models with an encoder, like ",
                                     large.config.name));
  }
  if (large.start_token == small.start_token) return absl::OkStatus();
  return out_of_range(absl::StrCat(field, ": ", name, ": decoder_start_token_id"),
                      small.start_token,
                      absl::StrCat(large.start_token, ", that of ", large.config.name));
}

}  // namespace tandem
