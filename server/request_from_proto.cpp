#include "server/request_from_proto.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/host/methods.h"
#include "server/chat_json.h"

namespace tandem {
namespace {

constexpr int kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int kMaxStopSequences = 64;
constexpr size_t kMaxStopBytes = 1024;
constexpr int kMaxTokenList = 1024;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxPriority = 100;
constexpr int kMaxChoices = 16;
constexpr double kMaxTimeLimit = 86400;
constexpr double kMaxTemperature = 100;

// [min, max], or (min, max] when `open`. False for NaN.
template <class Number>
absl::Status in_range(absl::string_view field, Number value, Number min, Number max,
                      bool open = false) {
  if ((open ? value > min : value >= min) && value <= max) return absl::OkStatus();
  return out_of_range(field, value, absl::StrCat(open ? "(" : "[", min, ", ", max, "]"));
}

template <class Value, class Allowed>
absl::Status not_offered(absl::string_view field, const Value& value, const Allowed& neutral) {
  return out_of_range(field, value, absl::StrCat(neutral, " (not offered by this version)"));
}

// The parameter of a method, as "bild.window".
#define TANDEM_CHECK_SET(in, prefix, field, min, max) \
  if ((in).has_##field()) TANDEM_RETURN_IF_ERROR(in_range(prefix #field, (in).field(), min, max))

// Ranges of what the engine has, it checks itself (engine/host/methods.h); here, so that a bad
// field is refused before anything is tokenized.
absl::StatusOr<SpeculativeFields> speculative_from(const v1::Speculative& in) {
  SpeculativeFields out;
  if (in.has_draft() && !v1::Speculative::Draft_IsValid(in.draft())) {
    return out_of_range("speculative.draft", static_cast<int>(in.draft()),
                        "DRAFT_MODEL, DRAFT_NGRAM");
  }
  if (in.draft() == v1::Speculative::DRAFT_MODEL) out.draft = SpeculativeFields::Draft::kModel;
  if (in.draft() == v1::Speculative::DRAFT_NGRAM) out.draft = SpeculativeFields::Draft::kNgram;
  if (in.has_draft_tokens()) out.draft_tokens = in.draft_tokens();
  if (in.has_adaptive()) out.adaptive = in.adaptive();
  if (in.has_min_draft_probability()) out.min_draft_probability = in.min_draft_probability();
  TANDEM_RETURN_IF_ERROR(check_fields(out));
  return out;
}

absl::StatusOr<BildFields> bild_from(const v1::Bild& in) {
  BildFields out;
  if (in.has_fallback_threshold()) out.fallback_threshold = in.fallback_threshold();
  if (in.has_rollback_threshold()) out.rollback_threshold = in.rollback_threshold();
  if (in.has_max_small_run()) out.max_small_run = in.max_small_run();
  if (in.has_verify_eos()) out.verify_eos = in.verify_eos();
  if (in.has_early_exit()) out.early_exit = in.early_exit();
  if (in.has_window()) out.window = in.window();
  TANDEM_RETURN_IF_ERROR(check_fields(out));
  return out;
}

absl::StatusOr<BeamFields> beam_from(const v1::Beam& in) {
  BeamFields out;
  if (in.has_width()) out.width = in.width();
  if (in.has_length_penalty()) out.length_penalty = in.length_penalty();
  TANDEM_RETURN_IF_ERROR(check_fields(out));
  return out;
}

absl::Status check_bita(const v1::Bita& in) {
  TANDEM_CHECK_SET(in, "bita.", num_masks, 1, 16);
  TANDEM_CHECK_SET(in, "bita.", num_candidates, 1, 16);
  if (in.has_tree() && !v1::Bita::Tree_IsValid(in.tree())) {
    return out_of_range("bita.tree", static_cast<int>(in.tree()),
                        "TREE_EFFICIENT, TREE_TRIANGLE, TREE_FULL, TREE_CHAIN, "
                        "TREE_STRAIGHTFORWARD");
  }
  return absl::OkStatus();
}

// The method, and its parameters into `out`.
absl::StatusOr<Method> method_from(const v1::GenerateRequest& in, GenerateRequest* out) {
  switch (in.method_case()) {
    case v1::GenerateRequest::METHOD_NOT_SET:
    case v1::GenerateRequest::kAuto:
      return Method::kAuto;
    case v1::GenerateRequest::kAutoregressive:
      return Method::kAutoregressive;
    case v1::GenerateRequest::kSpeculative: {
      TANDEM_ASSIGN_OR_RETURN(out->speculative, speculative_from(in.speculative()));
      return Method::kSpeculative;
    }
    case v1::GenerateRequest::kBild: {
      TANDEM_ASSIGN_OR_RETURN(out->bild, bild_from(in.bild()));
      return Method::kBild;
    }
    case v1::GenerateRequest::kBita:
      TANDEM_RETURN_IF_ERROR(check_bita(in.bita()));
      return Method::kBita;
    case v1::GenerateRequest::kPpd:
      TANDEM_CHECK_SET(in.ppd(), "ppd.", exit_layer, 1, 4096);
      TANDEM_CHECK_SET(in.ppd(), "ppd.", num_candidates, 1, 16);
      return Method::kPpd;
    case v1::GenerateRequest::kLlmToSlm:
      TANDEM_CHECK_SET(in.llm_to_slm(), "llm_to_slm.", draft_tokens, 1, 64);
      return Method::kLlmToSlm;
  }
  return absl::InvalidArgumentError("method: unknown");
}

absl::StatusOr<Contract> contract_from(const v1::GenerateRequest& in) {
  if (!in.has_require_contract()) return Contract::kAny;
  switch (in.require_contract()) {
    case v1::CONTRACT_ANY:
      return Contract::kAny;
    case v1::CONTRACT_LOSSY:
      return Contract::kLossy;
    case v1::CONTRACT_DISTRIBUTION:
      return Contract::kDistribution;
    case v1::CONTRACT_EXACT:
      return Contract::kExact;
    default:
      return out_of_range("require_contract", static_cast<int>(in.require_contract()),
                          "CONTRACT_ANY, CONTRACT_LOSSY, CONTRACT_DISTRIBUTION, CONTRACT_EXACT");
  }
}

// Token ids go on as they are: only the engine knows the vocabulary.
std::vector<Token> tokens_from(const v1::TokenIds& in) {
  return std::vector<Token>(in.ids().begin(), in.ids().end());
}

// `In` is any message with the prompt oneof of GenerateRequest.
template <class In>
absl::StatusOr<Prompt> prompt_from(const In& in) {
  switch (in.prompt_case()) {
    case In::kText:
      if (in.text().empty()) return out_of_range("text", "empty", "at least one character");
      return Prompt(in.text());
    case In::kTokenIds:
      if (in.token_ids().ids().empty())
        return out_of_range("token_ids", "empty", "at least one id");
      return Prompt(tokens_from(in.token_ids()));
    case In::kChat: {
      TANDEM_ASSIGN_OR_RETURN(ChatPrompt chat, chat_prompt_from(in.chat()));
      return Prompt(std::move(chat));
    }
    default:
      return out_of_range("prompt", "none", "one of text, token_ids, chat");
  }
}

absl::Status check_offered(const v1::GenerateRequest& in) {
  // Sizes, not contents: a grammar may hold what a prompt holds.
  const auto bytes = [](const std::string& s) { return absl::StrCat(s.size(), " bytes"); };
  if (!in.adapter().empty()) return not_offered("adapter", quote_value(in.adapter()), "empty");
  switch (in.constraint_case()) {
    case v1::GenerateRequest::CONSTRAINT_NOT_SET:
      return absl::OkStatus();
    case v1::GenerateRequest::kJsonSchema:
      return not_offered("json_schema", bytes(in.json_schema()), "unset");
    case v1::GenerateRequest::kRegex:
      return not_offered("regex", bytes(in.regex()), "unset");
    case v1::GenerateRequest::kGrammar:
      return not_offered("grammar", bytes(in.grammar()), "unset");
    case v1::GenerateRequest::kChoice:
      return not_offered("choice", absl::StrCat(in.choice().texts_size(), " texts"), "unset");
  }
  return absl::OkStatus();
}

// Of lists of tokens.
absl::Status check_length(absl::string_view field, int entries) {
  if (entries <= kMaxTokenList) return absl::OkStatus();
  return out_of_range(field, absl::StrCat(entries, " of them"),
                      absl::StrCat("at most ", kMaxTokenList));
}

absl::StatusOr<SamplingFields> sampling_from(const v1::GenerateRequest& in) {
  SamplingFields out;
  TANDEM_CHECK_SET(in, "", temperature, 0.0, kMaxTemperature);
  TANDEM_CHECK_SET(in, "", top_k, 0, kMaxInt32);
  if (in.has_top_p()) TANDEM_RETURN_IF_ERROR(in_range("top_p", in.top_p(), 0.0, 1.0, true));
  TANDEM_CHECK_SET(in, "", min_p, 0.0, 1.0);
  if (in.has_typical_p()) {
    TANDEM_RETURN_IF_ERROR(in_range("typical_p", in.typical_p(), 0.0, 1.0, true));
  }
  TANDEM_CHECK_SET(in, "", repetition_penalty, 0.01, 100.0);
  TANDEM_CHECK_SET(in, "", presence_penalty, -2.0, 2.0);
  TANDEM_CHECK_SET(in, "", frequency_penalty, -2.0, 2.0);
  TANDEM_RETURN_IF_ERROR(check_length("logit_bias", static_cast<int>(in.logit_bias().size())));
  TANDEM_RETURN_IF_ERROR(check_length("bad_token_ids", in.bad_token_ids_size()));
  // `+ 0.0` makes -0 a plain zero.
  if (in.has_temperature()) out.temperature = in.temperature() + 0.0;
  if (in.has_top_k()) out.top_k = in.top_k();
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p() + 0.0;
  if (in.has_typical_p()) out.typical_p = in.typical_p();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  // Entries are checked where the vocabulary is known. A map has no order of its own; errors do.
  out.logit_bias.assign(in.logit_bias().begin(), in.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  out.bad_token_ids.assign(in.bad_token_ids().begin(), in.bad_token_ids().end());
  if (in.has_seed()) out.seed = in.seed();
  return out;
}

absl::StatusOr<StoppingFields> stopping_from(const v1::GenerateRequest& in) {
  StoppingFields out;
  TANDEM_CHECK_SET(in, "", max_new_tokens, 1, kMaxInt32);
  if (in.has_max_new_tokens()) out.max_new_tokens = in.max_new_tokens();
  TANDEM_CHECK_SET(in, "", min_new_tokens, 0, kMaxInt32);
  if (in.has_min_new_tokens()) out.min_new_tokens = in.min_new_tokens();

  if (in.stop_sequences_size() > kMaxStopSequences) {
    return out_of_range("stop_sequences", absl::StrCat(in.stop_sequences_size(), " of them"),
                        absl::StrCat("at most ", kMaxStopSequences));
  }
  for (int i = 0; i < in.stop_sequences_size(); ++i) {
    const std::string& text = in.stop_sequences(i);
    if (text.empty() || text.size() > kMaxStopBytes) {
      return out_of_range(absl::StrCat("stop_sequences[", i, "]"),
                          absl::StrCat(text.size(), " bytes"),
                          absl::StrCat("1 to ", kMaxStopBytes, " bytes"));
    }
    out.stop_sequences.push_back(text);
  }
  TANDEM_RETURN_IF_ERROR(check_length("stop_token_ids", in.stop_token_ids_size()));
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out.include_stop_sequence = in.include_stop_sequence();
  out.ignore_eos = in.ignore_eos();
  if (in.has_time_limit_seconds()) {
    TANDEM_RETURN_IF_ERROR(
        in_range("time_limit_seconds", in.time_limit_seconds(), 0.0, kMaxTimeLimit, true));
    out.time_limit = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(in.time_limit_seconds()));
  }
  return out;
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
  return out_of_range("model", "\"\"", "a name that Models.ListModels gives");
}

absl::StatusOr<GenerateRequest> generate_request_from(const v1::GenerateRequest& in) {
  GenerateRequest out;
  TANDEM_RETURN_IF_ERROR(check_model_name(in.model()));
  out.model = in.model();
  TANDEM_RETURN_IF_ERROR(check_request_id(in.request_id()));
  out.request_id = in.request_id();
  TANDEM_RETURN_IF_ERROR(check_offered(in));
  TANDEM_ASSIGN_OR_RETURN(out.method, method_from(in, &out));
  TANDEM_ASSIGN_OR_RETURN(out.beam, beam_from(in.beam()));
  TANDEM_ASSIGN_OR_RETURN(out.require_contract, contract_from(in));
  TANDEM_ASSIGN_OR_RETURN(out.sampling, sampling_from(in));
  TANDEM_ASSIGN_OR_RETURN(out.stopping, stopping_from(in));
  TANDEM_CHECK_SET(in, "", truncate_prompt_tokens, 1, kMaxInt32);
  if (in.has_truncate_prompt_tokens()) out.truncate_prompt_tokens = in.truncate_prompt_tokens();
  TANDEM_CHECK_SET(in, "", top_logprobs, 0, kMaxTopLogprobs);
  out.top_logprobs = in.top_logprobs();
  out.logprobs = in.logprobs() || in.top_logprobs() > 0;
  TANDEM_CHECK_SET(in, "", n, 1, kMaxChoices);
  if (in.has_n()) out.n = in.n();
  out.raw_logprobs = in.raw_logprobs();
  out.include_eos_token = in.include_eos_token();
  TANDEM_CHECK_SET(in, "", priority, -kMaxPriority, kMaxPriority);
  out.priority = in.priority();
  if (in.has_add_special_tokens()) out.add_special_tokens = in.add_special_tokens();
  if (in.has_skip_special_tokens()) out.skip_special_tokens = in.skip_special_tokens();
  TANDEM_ASSIGN_OR_RETURN(out.prompt, prompt_from(in));
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
  TANDEM_RETURN_IF_ERROR(check_model_name(in.model()));
  out.model = in.model();
  TANDEM_RETURN_IF_ERROR(check_request_id(in.request_id()));
  out.request_id = in.request_id();
  TANDEM_CHECK_SET(in, "", top_logprobs, 0, kMaxTopLogprobs);
  out.top_logprobs = in.top_logprobs();
  TANDEM_CHECK_SET(in, "", priority, -kMaxPriority, kMaxPriority);
  out.priority = in.priority();
  out.score_prompt = in.score_prompt();
  if (in.has_add_special_tokens()) out.add_special_tokens = in.add_special_tokens();
  if (in.has_continuation_token_ids()) {
    out.continuation = tokens_from(in.continuation_token_ids());
  } else {
    out.continuation = in.continuation_text();
  }
  const bool nothing = in.continuation_text().empty() && in.continuation_token_ids().ids().empty();
  if (nothing && !in.score_prompt()) {
    return out_of_range("continuation", "empty",
                        "continuation_text or continuation_token_ids, unless score_prompt");
  }
  TANDEM_ASSIGN_OR_RETURN(out.prompt, prompt_from(in));
  return out;
}

absl::StatusOr<TokenizeQuery> tokenize_query_from(const v1::TokenizeRequest& in) {
  TokenizeQuery out;
  TANDEM_RETURN_IF_ERROR(check_model_name(in.model()));
  out.model = in.model();
  if (in.has_add_special_tokens()) out.add_special_tokens = in.add_special_tokens();
  out.return_token_texts = in.return_token_texts();
  switch (in.prompt_case()) {
    case v1::TokenizeRequest::kText:  // an empty text has no tokens, or only special ones
      out.prompt = in.text();
      return out;
    case v1::TokenizeRequest::kChat: {
      TANDEM_ASSIGN_OR_RETURN(out.prompt, chat_prompt_from(in.chat()));
      return out;
    }
    default:
      return out_of_range("prompt", "none", "one of text, chat");
  }
}

}  // namespace tandem
