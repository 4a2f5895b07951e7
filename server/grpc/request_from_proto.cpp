#include "server/grpc/request_from_proto.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/sampling_params.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/config/settings_proto.h"
#include "engine/host/methods/plan.h"
#include "server/grpc/chat_json.h"
#include "server/grpc/constraint_from_proto.h"
#include "server/grpc/proto_enums.h"

namespace tandem {
namespace {

constexpr int kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int kMaxStopSequences = 64;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxAllStopBytes = 4096;
constexpr int kMaxTokenList = 1024;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxPriority = 100;
constexpr int kMaxChoices = 16;
constexpr double kMaxTimeLimit = 86400;

// [min, max], or (min, max] when `open`. False for NaN.
template <class Number>
absl::Status in_range(absl::string_view field, Number value, Number min, Number max,
                      bool open = false) {
  if ((open ? value > min : value >= min) && value <= max) return absl::OkStatus();
  return out_of_range(field, value, absl::StrCat(open ? "(" : "[", min, ", ", max, "]"));
}

// All errors go into `wrong`; the result is then discarded.
#define TANDEM_CHECK_SET(in, field, min, max) \
  if ((in).has_##field()) wrong->add(in_range(#field, (in).field(), min, max))

// The method and its parameters, from the message of the oneof. Ranges are checked here so that an
// invalid field is rejected before tokenization. The engine rejects methods that are not offered.
void method_from(const v1::GenerateRequest& in, GenerateRequest* out, Violations* wrong) {
  const auto* const oneof = v1::GenerateRequest::descriptor()->FindOneofByName("method");
  const auto* const field = in.GetReflection()->GetOneofFieldDescriptor(in, oneof);
  if (!field) return;
  out->method = field->name();
  out->parameters = settings_from(in.GetReflection()->GetMessage(in, field));
  const MethodEntry* const method = find_method(out->method);
  if (method) wrong->add(check_parameters(*method, out->parameters));
}

Contract contract_from(const v1::GenerateRequest& in, Violations* wrong) {
  if (!in.has_require_contract()) return Contract::kAny;
  const auto contract = kProtoContracts.find(in.require_contract());
  if (!contract.has_value()) {
    wrong->add(out_of_range("require_contract", static_cast<int>(in.require_contract()),
                            "CONTRACT_ANY, CONTRACT_LOSSY, CONTRACT_DISTRIBUTION, "
                            "CONTRACT_EXACT_UP_TO_ROUNDING, CONTRACT_EXACT"));
  }
  return contract.value_or(Contract::kAny);
}

// Token ids are not checked: only the engine knows the vocabulary.
std::vector<Token> tokens_from(const v1::TokenIds& in) {
  return std::vector<Token>(in.ids().begin(), in.ids().end());
}

// `In` is any message with the prompt oneof of GenerateRequest.
template <class In>
Prompt prompt_from(const In& in, Violations* wrong) {
  switch (in.prompt_case()) {
    case In::kText:
      if (in.text().empty()) wrong->add(out_of_range("text", "empty", "at least one character"));
      return in.text();
    case In::kTokenIds:
      if (in.token_ids().ids().empty()) {
        wrong->add(out_of_range("token_ids", "empty", "at least one id"));
      }
      return tokens_from(in.token_ids());
    case In::kChat:
      return chat_prompt_from(in.chat(), wrong);
    default:
      wrong->add(out_of_range("prompt", "none", "one of text, token_ids, chat"));
      return std::string();
  }
}

// The length of a token list.
absl::Status check_length(absl::string_view field, int entries) {
  if (entries <= kMaxTokenList) return absl::OkStatus();
  return out_of_range(field, absl::StrCat(entries, " of them"),
                      absl::StrCat("at most ", kMaxTokenList));
}

SamplingFields sampling_from(const v1::GenerateRequest& in, Violations* wrong) {
  SamplingFields out;
  const auto* const type = v1::GenerateRequest::descriptor();
  const auto* const reflection = v1::GenerateRequest::GetReflection();
  for (const SamplingParameter& p : kSamplingParameters) {
    const auto* const field = type->FindFieldByName(p.name);
    if (!reflection->HasField(in, field)) continue;
    const double value =
        p.integer ? reflection->GetInt32(in, field) : reflection->GetDouble(in, field);
    wrong->add(p.check(value));
    out.*p.member = value + 0.0;  // -0 becomes 0
  }
  wrong->add(check_length("logit_bias", static_cast<int>(in.logit_bias().size())));
  wrong->add(check_length("bad_token_ids", in.bad_token_ids_size()));
  // The engine checks the entries. Sorted, because a map has no order and errors name entries.
  out.logit_bias.assign(in.logit_bias().begin(), in.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  out.bad_token_ids.assign(in.bad_token_ids().begin(), in.bad_token_ids().end());
  if (in.has_seed()) out.seed = in.seed();
  return out;
}

StoppingFields stopping_from(const v1::GenerateRequest& in, Violations* wrong) {
  StoppingFields out;
  TANDEM_CHECK_SET(in, max_new_tokens, 1, kMaxInt32);
  if (in.has_max_new_tokens()) out.max_new_tokens = in.max_new_tokens();
  TANDEM_CHECK_SET(in, min_new_tokens, 0, kMaxInt32);
  if (in.has_min_new_tokens()) out.min_new_tokens = in.min_new_tokens();

  if (in.stop_sequences_size() > kMaxStopSequences) {
    wrong->add(out_of_range("stop_sequences", absl::StrCat(in.stop_sequences_size(), " of them"),
                            absl::StrCat("at most ", kMaxStopSequences)));
  }
  size_t all = 0;
  for (int i = 0; i < std::min(in.stop_sequences_size(), kMaxStopSequences); ++i) {
    const std::string& text = in.stop_sequences(i);
    all += text.size();
    if (text.empty() || text.size() > kMaxStopBytes) {
      wrong->add(out_of_range(absl::StrCat("stop_sequences[", i, "]"),
                              absl::StrCat(text.size(), " bytes"),
                              absl::StrCat("1 to ", kMaxStopBytes, " bytes")));
    }
    out.stop_sequences.push_back(text);
  }
  if (all > kMaxAllStopBytes) {
    wrong->add(out_of_range("stop_sequences", absl::StrCat(all, " bytes in all of them"),
                            absl::StrCat("at most ", kMaxAllStopBytes)));
  }
  wrong->add(check_length("stop_token_ids", in.stop_token_ids_size()));
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out.include_stop_sequence = in.include_stop_sequence();
  out.ignore_eos = in.ignore_eos();
  if (in.has_time_limit_seconds()) {
    const absl::Status status =
        in_range("time_limit_seconds", in.time_limit_seconds(), 0.0, kMaxTimeLimit, true);
    wrong->add(status);
    // A number out of range may not fit a Duration.
    if (status.ok()) {
      out.time_limit = std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(in.time_limit_seconds()));
    }
  }
  return out;
}

// The fields that Generate and Score share.
template <class In, class Out>
void head_from(const In& in, Out* out, Violations* wrong) {
  wrong->add(check_model_name(in.model()));
  out->model = in.model();
  out->adapter = in.adapter();
  wrong->add(check_request_id(in.request_id()));
  out->request_id = in.request_id();
  out->prompt = prompt_from(in, wrong);
  if (in.has_add_special_tokens()) out->add_special_tokens = in.add_special_tokens();
}
template <class In, class Out>
void logprobs_and_priority_from(const In& in, Out* out, Violations* wrong) {
  TANDEM_CHECK_SET(in, top_logprobs, 0, kMaxTopLogprobs);
  out->top_logprobs = in.top_logprobs();
  TANDEM_CHECK_SET(in, priority, -kMaxPriority, kMaxPriority);
  out->priority = in.priority();
}

}  // namespace

absl::Status check_request_id(const std::string& id) {
  constexpr size_t kMax = 128;
  if (id.size() > kMax ||
      !std::all_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_isgraph(c); })) {
    return out_of_range("request_id", quote_value(id),
                        "at most 128 characters of printable ASCII without spaces");
  }
  return absl::OkStatus();
}

absl::Status check_model_name(const std::string& name) {
  if (!name.empty()) return absl::OkStatus();
  return out_of_range("model", "\"\"", "a name from Models.ListModels");
}

absl::StatusOr<GenerateRequest> generate_request_from(const v1::GenerateRequest& in) {
  GenerateRequest out;
  Violations violations;
  Violations* const wrong = &violations;
  head_from(in, &out, wrong);
  TANDEM_CHECK_SET(in, truncate_prompt_tokens, 1, kMaxInt32);
  if (in.has_truncate_prompt_tokens()) out.truncate_prompt_tokens = in.truncate_prompt_tokens();
  method_from(in, &out, wrong);
  out.require_contract = contract_from(in, wrong);
  out.sampling = sampling_from(in, wrong);
  TANDEM_CHECK_SET(in, n, 1, kMaxChoices);
  if (in.has_n()) out.n = in.n();
  out.beam = settings_from(in.beam());
  wrong->add(check_parameters(beam_entry(), out.beam));
  out.stopping = stopping_from(in, wrong);
  if (in.has_skip_special_tokens()) out.skip_special_tokens = in.skip_special_tokens();
  logprobs_and_priority_from(in, &out, wrong);
  out.logprobs = in.logprobs() || in.top_logprobs() > 0;
  out.raw_logprobs = in.raw_logprobs();
  out.include_eos_token = in.include_eos_token();
  out.trace = in.trace();
  out.raw_text = in.raw_text();
  out.constraint = constraint_from(in, wrong);
  TANDEM_RETURN_IF_ERROR(violations.status());
  return out;
}

bool wants_token_texts(const v1::GenerateRequest& in) {
  return in.return_token_texts() || in.logprobs() || in.top_logprobs() > 0;
}

bool wants_tokens(const v1::GenerateRequest& in) {
  return in.return_tokens() || wants_token_texts(in);
}

absl::StatusOr<ScoreRequest> score_request_from(const v1::ScoreRequest& in) {
  ScoreRequest out;
  Violations violations;
  Violations* const wrong = &violations;
  head_from(in, &out, wrong);
  if (in.has_continuation_token_ids()) {
    out.continuation = tokens_from(in.continuation_token_ids());
  } else {
    out.continuation = in.continuation_text();
  }
  const bool nothing = in.continuation_text().empty() && in.continuation_token_ids().ids().empty();
  if (nothing && !in.score_prompt()) {
    wrong->add(out_of_range("continuation", "empty",
                            "continuation_text or continuation_token_ids, unless score_prompt"));
  }
  out.score_prompt = in.score_prompt();
  logprobs_and_priority_from(in, &out, wrong);
  TANDEM_RETURN_IF_ERROR(violations.status());
  return out;
}

absl::StatusOr<TokenizeRequest> tokenize_request_from(const v1::TokenizeRequest& in) {
  TokenizeRequest out;
  Violations wrong;
  wrong.add(check_model_name(in.model()));
  out.model = in.model();
  if (in.has_add_special_tokens()) out.add_special_tokens = in.add_special_tokens();
  switch (in.prompt_case()) {
    case v1::TokenizeRequest::kText:  // may be empty
      out.prompt = in.text();
      break;
    case v1::TokenizeRequest::kChat:
      out.prompt = chat_prompt_from(in.chat(), &wrong);
      break;
    default:
      wrong.add(out_of_range("prompt", "none", "one of text, chat"));
  }
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

}  // namespace tandem
