#include "engine/base/sampling_params.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Integers in full: 2147483647, not 2.14748e+09.
std::string number_text(double value, bool integer) {
  constexpr double kExact = 1LL << 53;
  if (integer && std::trunc(value) == value && std::abs(value) <= kExact) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  return absl::StrCat(value);
}

}  // namespace

std::string SamplingParameter::allowed() const {
  return absl::StrCat(min_excluded ? "(" : "[", number_text(min, integer), ", ",
                      number_text(max, integer), "]");
}

absl::Status SamplingParameter::check(double value) const {
  const bool above = min_excluded ? value > min : value >= min;
  if (above && value <= max && (!integer || std::trunc(value) == value)) return absl::OkStatus();
  return out_of_range(name, number_text(value, integer), allowed());
}

const SamplingParameter* find_sampling_parameter(const std::string& name) {
  const auto row = std::ranges::find(kSamplingParameters, name, &SamplingParameter::name);
  return row != kSamplingParameters.end() ? &*row : nullptr;
}

SamplingParams resolve_sampling(SamplingParams request, const SamplingParams& model) {
  for (const SamplingParameter& p : kSamplingParameters) {
    std::optional<double>& value = request.*p.member;
    if (!value) value = (model.*p.member).value_or(p.off);
  }
  if (request.logit_bias.empty()) request.logit_bias = model.logit_bias;
  if (request.bad_token_ids.empty()) request.bad_token_ids = model.bad_token_ids;
  return request;
}

}  // namespace tandem
