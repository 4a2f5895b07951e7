#include "engine/sampling/params.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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

absl::Status is_share(absl::string_view field, double value) {
  if (value > 0 && value <= 1) return absl::OkStatus();
  return out_of_range(field, value, "(0, 1]");
}

absl::Status is_token(absl::string_view field, int64_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return out_of_range(field, id, absl::StrCat("0 to ", vocab_size - 1));
}

}  // namespace

absl::Status validate(const Params& p, int vocab_size) {
  Violations wrong;
  wrong.add(in_range("temperature", p.temperature, 0, 100));
  if (p.top_k < 0 || p.top_k > std::numeric_limits<int>::max()) {
    wrong.add(out_of_range("top_k", p.top_k, "[0, 2147483647]"));
  }
  wrong.add(is_share("top_p", p.top_p));
  wrong.add(in_range("min_p", p.min_p, 0, 1));
  wrong.add(is_share("typical_p", p.typical_p));
  // Transformers allows any above 0; logits divided by less than this leave fp32's range.
  wrong.add(in_range("repetition_penalty", p.repetition_penalty, 0.01, 100));
  wrong.add(in_range("presence_penalty", p.presence_penalty, -2, 2));
  wrong.add(in_range("frequency_penalty", p.frequency_penalty, -2, 2));
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

Warp warp_of(const Params& p) {
  Warp warp;
  warp.temperature = static_cast<float>(p.temperature);
  warp.top_k = static_cast<int>(p.top_k);
  warp.top_p = static_cast<float>(p.top_p);
  warp.min_p = static_cast<float>(p.min_p);
  warp.typical_p = static_cast<float>(p.typical_p);
  return warp;
}

Processors processors_of(const Params& p) {
  Processors out;
  out.repetition_penalty = static_cast<float>(p.repetition_penalty);
  out.presence_penalty = static_cast<float>(p.presence_penalty);
  out.frequency_penalty = static_cast<float>(p.frequency_penalty);
  std::map<Token, float> bias;
  for (const auto& [id, value] : p.logit_bias) {
    if (value != 0) bias[static_cast<Token>(id)] = static_cast<float>(value);
  }
  for (const int64_t id : p.bad_token_ids) {
    bias[static_cast<Token>(id)] = -std::numeric_limits<float>::infinity();
  }
  out.bias.assign(bias.begin(), bias.end());
  return out;
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
