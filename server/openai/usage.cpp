#include "server/openai/usage.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::openai {
namespace {

std::string ratio(int64_t part, int64_t whole) {
  const double value = whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  return nlohmann::json(value).dump();
}

}  // namespace

void UsageTotal::add(const v1::Finished& choice, bool first_of_prompt) {
  const v1::Usage& usage = choice.usage();
  if (first_of_prompt) {
    prompt_tokens_ += usage.prompt_tokens();
    cached_tokens_ += usage.cached_tokens();
  }
  completion_tokens_ += usage.completion_tokens();
  reasoning_tokens_ += usage.reasoning_tokens();
  const v1::MethodStats& stats = choice.stats();
  draft_tokens_ += stats.draft_tokens();
  const auto lengths = static_cast<size_t>(stats.accept_lengths_size());
  if (accept_lengths_.size() < lengths) accept_lengths_.resize(lengths);
  for (size_t i = 0; i < lengths; ++i) {
    accept_lengths_[i] += stats.accept_lengths(static_cast<int>(i));
  }
}

int64_t UsageTotal::accepted() const {
  int64_t sum = 0;
  for (size_t i = 0; i < accept_lengths_.size(); ++i) {
    sum += static_cast<int64_t>(i) * accept_lengths_[i];
  }
  return sum;
}

std::string UsageTotal::json() const {
  return absl::StrCat(
      "{\"prompt_tokens\":", prompt_tokens_, ",\"completion_tokens\":", completion_tokens_,
      ",\"total_tokens\":", prompt_tokens_ + completion_tokens_,
      ",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens_,
      "},\"completion_tokens_details\":{\"reasoning_tokens\":", reasoning_tokens_,
      ",\"accepted_prediction_tokens\":", accepted(),
      ",\"rejected_prediction_tokens\":", std::max<int64_t>(0, draft_tokens_ - accepted()), "}}");
}

std::string UsageTotal::metrics_json() const {
  const int64_t steps = std::accumulate(accept_lengths_.begin(), accept_lengths_.end(), int64_t{0});
  if (steps == 0) return "";
  std::string histogram;
  for (size_t i = 0; i < accept_lengths_.size(); ++i) {
    if (accept_lengths_[i] == 0) continue;
    absl::StrAppend(&histogram, histogram.empty() ? "" : ",", "\"", i, "\":", accept_lengths_[i]);
  }
  // The mean counts the token that each verification adds to the accepted drafts.
  return absl::StrCat(
      "{\"speculative_decoding\":{\"mean_acceptance_length\":", ratio(steps + accepted(), steps),
      ",\"draft_acceptance_rate\":", ratio(accepted(), draft_tokens_),
      ",\"acceptance_histogram\":{", histogram, "},\"num_spec_steps\":", steps,
      ",\"num_accepted_draft_tokens\":", accepted(), ",\"num_draft_tokens\":", draft_tokens_, "}}");
}

}  // namespace tandem::openai
