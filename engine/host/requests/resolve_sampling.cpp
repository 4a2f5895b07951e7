#include "engine/host/requests/resolve_sampling.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/sampling/processors.h"

namespace tandem {

absl::StatusOr<SamplingParams> resolve_params(const Writer& writer, const SamplingFields& fields) {
  SamplingParams p = resolve_sampling(fields, writer.model.defaults);
  TANDEM_RETURN_IF_ERROR(sampling::validate(p, writer.vocab_size));
  return p;
}

absl::StatusOr<std::shared_ptr<const Processors>> resolve_processors(
    const Writer& writer, const SamplingParams& params, const StopRules& stops,
    int64_t prompt_tokens, const std::optional<int64_t>& min_new_tokens) {
  Processors p = sampling::processors_of(params);
  const int64_t max = stops.max_new_tokens;
  if (min_new_tokens && (*min_new_tokens < 0 || *min_new_tokens > max)) {
    return out_of_range("min_new_tokens", *min_new_tokens,
                        absl::StrCat("0 to ", max, " (max_new_tokens)"));
  }
  const int64_t least = min_new_tokens.value_or(std::min(writer.model.default_min_new_tokens, max));
  p.ends = stops.eos;
  p.ends.insert(p.ends.end(), stops.stop_tokens.begin(), stops.stop_tokens.end());
  if (least > 0 && !p.ends.empty()) {
    p.min_new_tokens = static_cast<int>(least);
  } else {
    p.ends.clear();
  }
  TANDEM_RETURN_IF_ERROR(sampling::check_bans(p, writer.vocab_size));
  if (p == Processors()) return std::shared_ptr<const Processors>();
  p.prompt_tokens = static_cast<int>(prompt_tokens);
  return std::make_shared<const Processors>(std::move(p));
}

std::vector<Token> resolve_stop_tokens(const std::vector<int64_t>& ids, int vocab_size,
                                       Violations* wrong) {
  std::vector<Token> tokens;
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      wrong->add(out_of_range("stop_token_ids", id, absl::StrCat("0 to ", vocab_size - 1)));
    }
    tokens.push_back(static_cast<Token>(id));
  }
  return tokens;
}

}  // namespace tandem
