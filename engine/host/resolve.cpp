#include "engine/host/resolve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/methods.h"
#include "engine/host/request_size.h"
#include "engine/sampling/params.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/stream_decoder.h"

namespace tandem {
namespace {

// Stop strings as the loop asks for them: the same decoder and matcher that the output goes
// through.
class MatchingStops final : public TextStops {
 public:
  MatchingStops(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                absl::Span<const Token> context, std::shared_ptr<const StopStrings> stops)
      : decoder_(std::move(tokenizer), skip_special_tokens, context),
        matcher_(std::move(stops), false) {}

  std::unique_ptr<TextStops> clone() const override {
    return std::make_unique<MatchingStops>(*this);
  }

  int push(Token token) override { return push(decoder_, matcher_, token); }

  bool would_stop(std::span<const Token> tokens) const override {
    StreamDecoder decoder = decoder_;
    StopMatcher matcher = matcher_;
    return std::any_of(tokens.begin(), tokens.end(),
                       [&](Token t) { return push(decoder, matcher, t) >= 0; });
  }

 private:
  static int push(StreamDecoder& decoder, StopMatcher& matcher, Token token) {
    std::string text, released;
    decoder.push(token, text);
    const std::optional<size_t> stop = matcher.push(text, released);
    return stop ? static_cast<int>(*stop) : -1;
  }

  StreamDecoder decoder_;
  StopMatcher matcher_;
};

// What the request says, and where it is silent the model.
absl::StatusOr<sampling::Params> resolve_params(const Deployment& deployment,
                                                const SamplingFields& fields) {
  sampling::Params p = deployment.large->defaults;
  p.temperature = fields.temperature.value_or(p.temperature);
  p.top_k = fields.top_k.value_or(p.top_k);
  p.top_p = fields.top_p.value_or(p.top_p);
  p.min_p = fields.min_p.value_or(p.min_p);
  p.typical_p = fields.typical_p.value_or(p.typical_p);
  p.repetition_penalty = fields.repetition_penalty.value_or(p.repetition_penalty);
  p.presence_penalty = fields.presence_penalty.value_or(p.presence_penalty);
  p.frequency_penalty = fields.frequency_penalty.value_or(p.frequency_penalty);
  if (!fields.logit_bias.empty()) p.logit_bias = fields.logit_bias;
  if (!fields.bad_token_ids.empty()) p.bad_token_ids = fields.bad_token_ids;
  TANDEM_RETURN_IF_ERROR(sampling::validate(p, deployment.vocab_size));
  return p;
}

// Null where they change nothing.
absl::StatusOr<std::shared_ptr<const Processors>> resolve_processors(
    const Deployment& deployment, const sampling::Params& params, const StopRules& stops,
    int64_t prompt_tokens, const std::optional<int64_t>& min_new_tokens) {
  Processors p = sampling::processors_of(params);
  const int64_t max = stops.max_new_tokens;
  if (min_new_tokens && (*min_new_tokens < 0 || *min_new_tokens > max)) {
    return out_of_range("min_new_tokens", *min_new_tokens,
                        absl::StrCat("0 to ", max, " (max_new_tokens)"));
  }
  const int64_t least =
      min_new_tokens.value_or(std::min(deployment.large->default_min_new_tokens, max));
  p.ends = stops.eos;
  p.ends.insert(p.ends.end(), stops.stop_tokens.begin(), stops.stop_tokens.end());
  if (least > 0 && !p.ends.empty()) {
    p.min_new_tokens = static_cast<int>(least);
  } else {
    p.ends.clear();
  }
  TANDEM_RETURN_IF_ERROR(sampling::check_bans(p, deployment.vocab_size));
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

absl::Status too_long(int64_t prompt, const std::string& allowed) {
  return with_reason(
      out_of_range("prompt", absl::StrCat(prompt, " tokens"),
                   absl::StrCat("at most ", allowed, "; truncate_prompt_tokens keeps its end")),
      "CONTEXT_LENGTH_EXCEEDED");
}

absl::StatusOr<int> resolve_max_new_tokens(const Deployment& deployment, const MethodPlan& plan,
                                           int64_t prompt, const std::optional<int64_t>& wanted) {
  const int64_t context = plan.context_length;
  const int64_t room = context - prompt;
  if (room < 1) {
    const std::string whose = plan.writer.empty() ? "" : " of " + plan.writer + ", which writes,";
    return too_long(
        prompt, absl::StrCat(context - 1, " (context of ", context, whose, " less one new token)"));
  }
  if (!wanted) return static_cast<int>(std::min(room, deployment.default_max_new_tokens));
  if (*wanted < 1 || *wanted > deployment.max_new_tokens) {
    return out_of_range("max_new_tokens", *wanted,
                        absl::StrCat("1 to ", deployment.max_new_tokens));
  }
  if (*wanted > room) {
    return with_reason(out_of_range("max_new_tokens", *wanted,
                                    absl::StrCat("at most ", room, " after ", prompt,
                                                 " prompt tokens (context of ", context, ")")),
                       "CONTEXT_LENGTH_EXCEEDED");
  }
  return static_cast<int>(*wanted);
}

}  // namespace

absl::Status check_tokens(absl::string_view field, const std::vector<Token>& ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return out_of_range(absl::StrCat(field, "[", i, "]"), ids[i],
                          absl::StrCat("0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Token>> tokenize(const Deployment& deployment, const Prompt& prompt,
                                            bool add_special_tokens) {
  const LoadedModel& model = *deployment.large;
  std::vector<Token> tokens;
  if (const auto* ids = std::get_if<std::vector<Token>>(&prompt)) {
    tokens = *ids;
    TANDEM_RETURN_IF_ERROR(check_tokens("token_ids", tokens, deployment.vocab_size));
  } else if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (text->empty()) return out_of_range("prompt", "empty", "1 token or more");
    TANDEM_ASSIGN_OR_RETURN(tokens, model.tokenizer->encode(*text, add_special_tokens));
  } else {
    const auto& chat = std::get<ChatPrompt>(prompt);
    if (!model.chat || !model.chat->present()) {
      return with_reason(
          absl::FailedPreconditionError(absl::StrCat("chat: model \"", deployment.name,
                                                     "\" has no chat template; offered: text, "
                                                     "token_ids")),
          "NO_CHAT_TEMPLATE");
    }
    TANDEM_ASSIGN_OR_RETURN(
        const std::string rendered,
        model.chat->render(chat.messages_json, chat.tools_json, chat.template_args_json,
                           chat.add_generation_prompt));
    TANDEM_RETURN_IF_ERROR(check_text(deployment, "chat, rendered", rendered.size()));
    TANDEM_ASSIGN_OR_RETURN(tokens, model.tokenizer->encode(rendered, false));
  }
  if (tokens.empty()) return out_of_range("prompt", "empty", "1 token or more");
  // A tokenizer may know more ids than the model has rows.
  TANDEM_RETURN_IF_ERROR(check_tokens("prompt tokens", tokens, deployment.vocab_size));
  return tokens;
}

absl::StatusOr<std::string> detokenize(const Deployment& deployment, absl::Span<const int64_t> ids,
                                       bool skip_special_tokens) {
  std::vector<Token> tokens;
  const Tokenizer& tokenizer = *deployment.large->tokenizer;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= tokenizer.vocab_size()) {
      return out_of_range(absl::StrCat("token_ids[", i, "]"), ids[i],
                          absl::StrCat("0 to ", tokenizer.vocab_size() - 1));
    }
    tokens.push_back(static_cast<Token>(ids[i]));
  }
  return tokenizer.decode(tokens, skip_special_tokens);
}

absl::StatusOr<Resolved> resolve(const Deployment& deployment, const GenerateRequest& request,
                                 uint64_t fresh_seed) {
  Resolved resolved;
  SequenceSpec& spec = resolved.spec;
  const LoadedModel& model = *deployment.large;

  // What stands on its own is looked at before what needs it, so that all that is wrong is told.
  Violations wrong;
  const absl::StatusOr<sampling::Params> resolved_params =
      resolve_params(deployment, request.sampling);
  wrong.add(resolved_params.status());
  absl::StatusOr<std::vector<Token>> prompt =
      tokenize(deployment, request.prompt, request.add_special_tokens);
  wrong.add(prompt.status());
  spec.stops.stop_tokens =
      resolve_stop_tokens(request.stopping.stop_token_ids, deployment.vocab_size, &wrong);
  if (request.truncate_prompt_tokens && *request.truncate_prompt_tokens < 1) {
    wrong.add(out_of_range("truncate_prompt_tokens", *request.truncate_prompt_tokens, "1 or more"));
  }
  if (request.top_logprobs < 0 || request.top_logprobs > 20) {
    wrong.add(out_of_range("top_logprobs", request.top_logprobs, "0 to 20"));
  }
  TANDEM_RETURN_IF_ERROR(wrong.status());

  const sampling::Params& params = *resolved_params;
  spec.prompt = *std::move(prompt);
  spec.warp = sampling::warp_of(params);
  spec.warp.vocab = deployment.vocab_size;
  spec.warp.seed = request.sampling.seed.value_or(fresh_seed);
  // A search draws nothing, whatever the model's generation_config.json likes.
  if (searches_beams(request) && !request.sampling.temperature) spec.warp.temperature = 0;

  if (request.truncate_prompt_tokens) {
    const int64_t keep = *request.truncate_prompt_tokens;
    if (const auto n = static_cast<int64_t>(spec.prompt.size()); n > keep) {
      spec.prompt.erase(spec.prompt.begin(), spec.prompt.begin() + (n - keep));
    }
  }
  if (model.encoder != nullptr) {
    spec.source = std::exchange(spec.prompt, {model.start_token});
    if (spec.prompt_tokens() > deployment.source_length) {
      return too_long(spec.prompt_tokens(),
                      absl::StrCat(deployment.source_length, " (what the encoder reads at once)"));
    }
  }
  const auto prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan,
                          plan_method(deployment, request, spec.warp.greedy(), prompt_tokens));
  resolved.method = plan.method;
  resolved.contract = plan.contract;
  spec.method = std::move(plan.start);
  spec.roles = std::move(plan.roles);
  spec.width = plan.width;
  spec.extra_rows = plan.extra_rows;
  if (prompt_tokens > plan.prompt_length) {
    return too_long(prompt_tokens, absl::StrCat(plan.prompt_length, " (context of ", plan.reader,
                                                ", which reads it)"));
  }
  TANDEM_ASSIGN_OR_RETURN(
      spec.stops.max_new_tokens,
      resolve_max_new_tokens(deployment, plan, prompt_tokens, request.stopping.max_new_tokens));
  if (!request.stopping.ignore_eos) spec.stops.eos = model.eos;
  spec.stops.include_end = request.include_eos_token;
  TANDEM_ASSIGN_OR_RETURN(spec.warp.processors,
                          resolve_processors(deployment, params, spec.stops, prompt_tokens,
                                             request.stopping.min_new_tokens));
  resolved.stops = std::make_shared<const StopStrings>(request.stopping.stop_sequences);
  if (resolved.stops->any()) {
    const size_t context = std::min(spec.prompt.size(), kDecodeContext);
    spec.stops.text = std::make_unique<MatchingStops>(
        model.tokenizer, request.skip_special_tokens,
        absl::MakeConstSpan(spec.prompt).last(context), resolved.stops);
  }
  spec.top_logprobs =
      static_cast<int>(std::min<int64_t>(request.top_logprobs, deployment.vocab_size));
  spec.logprobs = request.logprobs || request.top_logprobs > 0;
  spec.raw_logprobs = request.raw_logprobs;
  spec.priority = request.priority;
  spec.client = request.client;
  spec.salt = deployment.prefix_salt(request.client);
  spec.deadline = request.deadline;
  spec.series = deployment.series.at(resolved.method);
  return resolved;
}

absl::StatusOr<ResolvedScore> resolve(const Deployment& deployment, const ScoreRequest& request) {
  ResolvedScore resolved;
  if (deployment.large->encoder != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("score: model \"", deployment.name, "\" has an encoder; offered: Generate"));
  }
  TANDEM_ASSIGN_OR_RETURN(resolved.tokens,
                          tokenize(deployment, request.prompt, request.add_special_tokens));
  resolved.prompt_tokens = static_cast<int64_t>(resolved.tokens.size());
  std::vector<Token> continuation;
  if (const auto* text = std::get_if<std::string>(&request.continuation)) {
    TANDEM_ASSIGN_OR_RETURN(continuation, deployment.large->tokenizer->encode(*text, false));
  } else {
    continuation = std::get<std::vector<Token>>(request.continuation);
  }
  TANDEM_RETURN_IF_ERROR(
      check_tokens("continuation_token_ids", continuation, deployment.vocab_size));
  if (continuation.empty() && !request.score_prompt) {
    return out_of_range("continuation", "empty", "1 token or more, or score_prompt");
  }
  resolved.tokens.insert(resolved.tokens.end(), continuation.begin(), continuation.end());
  const auto n = static_cast<int64_t>(resolved.tokens.size());
  if (n > deployment.context_length) {
    return with_reason(out_of_range("prompt and continuation tokens", n,
                                    absl::StrCat("at most ", deployment.context_length)),
                       "CONTEXT_LENGTH_EXCEEDED");
  }
  if (request.top_logprobs < 0 || request.top_logprobs > 20) {
    return out_of_range("top_logprobs", request.top_logprobs, "0 to 20");
  }
  resolved.begin = request.score_prompt ? 1 : static_cast<int>(resolved.prompt_tokens);
  return resolved;
}

}  // namespace tandem
