#include "engine/sampling/params.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"

namespace tandem::sampling {
namespace {

// Written so that NaN fails.
absl::Status in_range(absl::string_view field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return out_of_range(field, value, absl::StrCat("[", min, ", ", max, "]"));
}

absl::Status is_token(absl::string_view field, int64_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return out_of_range(field, id, absl::StrCat("0 to ", vocab_size - 1));
}

}  // namespace

absl::Status validate(const SamplingParams& p, int vocab_size) {
  Violations wrong;
  for (const SamplingParameter& row : kSamplingParameters) {
    if (const std::optional<double>& value = p.*row.member) wrong.add(row.check(*value));
  }
  std::set<int64_t> biased;
  for (const auto& [id, bias] : p.logit_bias) {
    wrong.add(is_token("logit_bias", id, vocab_size));
    wrong.add(in_range(absl::StrCat("logit_bias[", id, "]"), bias, -100, 100));
    if (!biased.insert(id).second) {
      wrong.add(
          out_of_range("logit_bias", absl::StrCat("token ", id, " twice"), "one entry a token"));
    }
  }
  for (const int64_t id : p.bad_token_ids) {
    wrong.add(is_token("bad_token_ids", id, vocab_size));
  }
  return wrong.status();
}

absl::Status check_bans(const Processors& processors, int vocab_size) {
  std::set<Token> banned;
  for (const auto& [token, bias] : processors.bias) {
    if (std::isinf(bias)) banned.insert(token);
  }
  const auto all = static_cast<size_t>(vocab_size);
  if (banned.size() >= all) {
    return out_of_range("bad_token_ids", absl::StrCat("all ", all, " tokens of the vocabulary"),
                        "at least one token is left");
  }
  if (processors.min_new_tokens == 0) return absl::OkStatus();
  banned.insert(processors.ends.begin(), processors.ends.end());
  if (banned.size() < all) return absl::OkStatus();
  return out_of_range("min_new_tokens", processors.min_new_tokens,
                      "0 where bad_token_ids and what ends a text are the whole vocabulary");
}

}  // namespace tandem::sampling
