#include "engine/host/resolve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/decode/autoregressive.h"
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
                absl::Span<const Token> context, const std::vector<std::string>& stops)
      : decoder_(std::move(tokenizer), skip_special_tokens, context), matcher_(stops, false) {}

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

absl::StatusOr<Warp> resolve_warp(const Deployment& deployment, const SamplingFields& fields,
                                  uint64_t fresh_seed) {
  Warp warp = deployment.large->defaults;
  const double temperature = fields.temperature.value_or(warp.temperature);
  const int64_t top_k = fields.top_k.value_or(warp.top_k);
  const double top_p = fields.top_p.value_or(warp.top_p);
  const double min_p = fields.min_p.value_or(warp.min_p);
  TANDEM_RETURN_IF_ERROR(sampling::validate(temperature, top_k, top_p, min_p));
  warp.temperature = static_cast<float>(temperature);
  warp.top_k = static_cast<int>(top_k);
  warp.top_p = static_cast<float>(top_p);
  warp.min_p = static_cast<float>(min_p);
  warp.seed = fields.seed.value_or(fresh_seed);
  return warp;
}

absl::StatusOr<int> resolve_max_new_tokens(const Deployment& deployment, int64_t prompt,
                                           const std::optional<int64_t>& wanted) {
  const int64_t room = deployment.context_length - prompt;
  if (room < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: ", prompt, " tokens; allowed: at most ",
                     deployment.context_length - 1, " (context of ", deployment.context_length,
                     " less one new token); truncate_prompt_tokens ", "keeps its end"));
  }
  if (!wanted) return static_cast<int>(std::min(room, deployment.default_max_new_tokens));
  if (*wanted < 1 || *wanted > deployment.max_new_tokens) {
    return out_of_range("max_new_tokens", *wanted,
                        absl::StrCat("1 to ", deployment.max_new_tokens));
  }
  if (*wanted > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens: ", *wanted, "; allowed: at most ", room, " after ", prompt,
                     " prompt tokens (context of ", deployment.context_length, ")"));
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
    TANDEM_RETURN_IF_ERROR(check_tokens("token_ids", tokens, model.shape.vocab_size));
  } else if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (text->empty()) return absl::InvalidArgumentError("prompt: empty; allowed: 1 token or more");
    TANDEM_ASSIGN_OR_RETURN(tokens, model.tokenizer->encode(*text, add_special_tokens));
  } else {
    const auto& chat = std::get<ChatPrompt>(prompt);
    if (!model.chat || !model.chat->present()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "chat: model \"", deployment.name, "\" has no chat template; offered: text, token_ids"));
    }
    TANDEM_ASSIGN_OR_RETURN(
        const std::string rendered,
        model.chat->render(chat.messages_json, chat.tools_json, chat.template_args_json,
                           chat.add_generation_prompt));
    TANDEM_ASSIGN_OR_RETURN(tokens, model.tokenizer->encode(rendered, false));
  }
  if (tokens.empty()) return absl::InvalidArgumentError("prompt: empty; allowed: 1 token or more");
  // A tokenizer may know more ids than the model has rows.
  TANDEM_RETURN_IF_ERROR(check_tokens("prompt tokens", tokens, model.shape.vocab_size));
  return tokens;
}

absl::StatusOr<Resolved> resolve(const Deployment& deployment, const GenerateRequest& request,
                                 uint64_t fresh_seed) {
  Resolved resolved;
  SequenceSpec& spec = resolved.spec;
  const LoadedModel& model = *deployment.large;

  resolved.method =
      request.method == Method::kAuto ? deployment.methods.front().method : request.method;
  const MethodInfo* offer = deployment.offers(resolved.method);
  if (!offer) {
    return absl::FailedPreconditionError(absl::StrCat("method: ", method_name(request.method),
                                                      "; offered by model \"", deployment.name,
                                                      "\": ", deployment.offered()));
  }
  TANDEM_ASSIGN_OR_RETURN(spec.warp, resolve_warp(deployment, request.sampling, fresh_seed));
  resolved.contract = spec.warp.greedy() ? offer->greedy : offer->sampled;
  if (resolved.contract < request.require_contract) {
    return absl::FailedPreconditionError(
        absl::StrCat("require_contract: ", contract_name(request.require_contract), "; ",
                     method_name(resolved.method), " with these parameters offers ",
                     contract_name(resolved.contract)));
  }

  TANDEM_ASSIGN_OR_RETURN(spec.prompt,
                          tokenize(deployment, request.prompt, request.add_special_tokens));
  if (request.truncate_prompt_tokens) {
    const int64_t keep = *request.truncate_prompt_tokens;
    if (keep < 1) return out_of_range("truncate_prompt_tokens", keep, "1 or more");
    if (const auto n = static_cast<int64_t>(spec.prompt.size()); n > keep) {
      spec.prompt.erase(spec.prompt.begin(), spec.prompt.begin() + (n - keep));
    }
  }
  const auto prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  TANDEM_ASSIGN_OR_RETURN(
      spec.stops.max_new_tokens,
      resolve_max_new_tokens(deployment, prompt_tokens, request.stopping.max_new_tokens));
  if (!request.stopping.ignore_eos) spec.stops.eos = model.eos;
  for (const int64_t id : request.stopping.stop_token_ids) {
    if (id < 0 || id >= model.shape.vocab_size) {
      return out_of_range("stop_token_ids", id, absl::StrCat("0 to ", model.shape.vocab_size - 1));
    }
    spec.stops.stop_tokens.push_back(static_cast<Token>(id));
  }
  if (!request.stopping.stop_sequences.empty()) {
    const size_t context = std::min(spec.prompt.size(), kDecodeContext);
    spec.stops.text = std::make_unique<MatchingStops>(
        model.tokenizer, request.skip_special_tokens,
        absl::MakeConstSpan(spec.prompt).last(context), request.stopping.stop_sequences);
  }
  if (request.top_logprobs < 0 || request.top_logprobs > 20) {
    return out_of_range("top_logprobs", request.top_logprobs, "0 to 20");
  }
  spec.top_logprobs =
      static_cast<int>(std::min<int64_t>(request.top_logprobs, model.shape.vocab_size));
  spec.logprobs = request.logprobs || request.top_logprobs > 0;
  spec.method = [](Gen g) { return autoregressive(g); };
  spec.roles = {{Role::kLarge, model.id, 0}};
  spec.priority = request.priority;
  spec.client = request.client;
  spec.salt = deployment.prefix_salt(request.client);
  spec.deadline = request.deadline;
  spec.series = deployment.series.at(resolved.method);
  return resolved;
}

absl::StatusOr<ResolvedScore> resolve(const Deployment& deployment, const ScoreRequest& request) {
  ResolvedScore resolved;
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
      check_tokens("continuation_token_ids", continuation, deployment.large->shape.vocab_size));
  if (continuation.empty() && !request.score_prompt) {
    return absl::InvalidArgumentError(
        "continuation: empty; allowed: 1 token or more, or score_prompt");
  }
  resolved.tokens.insert(resolved.tokens.end(), continuation.begin(), continuation.end());
  const auto n = static_cast<int64_t>(resolved.tokens.size());
  if (n > deployment.context_length) {
    return out_of_range("prompt and continuation tokens", n,
                        absl::StrCat("at most ", deployment.context_length));
  }
  if (request.top_logprobs < 0 || request.top_logprobs > 20) {
    return out_of_range("top_logprobs", request.top_logprobs, "0 to 20");
  }
  resolved.begin = request.score_prompt ? 1 : static_cast<int>(resolved.prompt_tokens);
  return resolved;
}

}  // namespace tandem
