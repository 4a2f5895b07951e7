#include "engine/host/requests/resolve.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/methods/plan.h"
#include "engine/host/requests/answer_constraint.h"
#include "engine/host/requests/matching_stops.h"
#include "engine/host/requests/resolve_constraint.h"
#include "engine/host/requests/resolve_sampling.h"
#include "engine/host/target.h"
#include "engine/sampling/warp.h"

namespace tandem {
namespace {

constexpr int64_t kMostTopLogprobs = 20;

Writer writer_of(const Deployment& d, const GenerateRequest& request) {
  if (d.answers_in_small_tokens(request)) return {*d.small, d.small_vocab_size};
  return {*d.large, d.vocab_size};
}

absl::Status check_top_logprobs(int64_t top_logprobs) {
  if (top_logprobs >= 0 && top_logprobs <= kMostTopLogprobs) return absl::OkStatus();
  return out_of_range("top_logprobs", top_logprobs, absl::StrCat("0 to ", kMostTopLogprobs));
}

absl::Status check_truncation(const std::optional<int64_t>& tokens) {
  if (!tokens || *tokens >= 1) return absl::OkStatus();
  return out_of_range("truncate_prompt_tokens", *tokens, "1 or more");
}

// Rows that the KV memory leaves for new tokens, next to the rows of drafts. 1 or more.
int64_t memory_left(const Deployment& d, const MethodPlan& plan, int64_t prompt) {
  int64_t rows = d.large->kv_rows();
  if (d.small) rows = std::min(rows, d.small->kv_rows());
  return std::max<int64_t>(1, rows / std::max(1, plan.width) - plan.extra_rows - prompt);
}

absl::StatusOr<int> resolve_max_new_tokens(const Deployment& deployment, const MethodPlan& plan,
                                           int64_t prompt, const GenerateRequest& request) {
  const std::optional<int64_t>& wanted = request.stopping.max_new_tokens;
  const int64_t context = plan.context_length;
  const int64_t room = context - prompt;
  if (room < 1) {
    const std::string whose = plan.writer.empty() ? "" : " of " + plan.writer + ", which writes,";
    return too_long(
        prompt, absl::StrCat(context - 1, " (context of ", context, whose, " less one new token)"));
  }
  if (!wanted) {
    const int64_t most = std::min(room, deployment.unset_max_new_tokens(request));
    if (!request.stopping.fill_context) return static_cast<int>(most);
    return static_cast<int>(std::min(most, memory_left(deployment, plan, prompt)));
  }
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

// Moves the prompt into `spec`. With an encoder, the decoder's prompt is its start token.
absl::Status set_prompt(const Deployment& d, const LoadedModel& model, TokenizedPrompt prompt,
                        SequenceSpec* spec) {
  spec->prompt = std::move(prompt.tokens);
  spec->conditioning_tokens = std::move(prompt.read);
  spec->alignment = std::move(prompt.alignment);
  if (model.encoder == nullptr) return absl::OkStatus();
  spec->encoder_tokens = std::exchange(spec->prompt, {model.start_token});
  if (spec->prompt_tokens() <= d.source_length) return absl::OkStatus();
  return too_long(spec->prompt_tokens(),
                  absl::StrCat(d.source_length, " (what the encoder reads at once)"));
}

// Moves the plan's coroutine and roles into `spec`.
absl::Status set_plan(MethodPlan* plan, SequenceSpec* spec) {
  spec->method = std::move(plan->start);
  spec->cast = std::move(plan->cast);
  spec->width = plan->width;
  spec->extra_rows = plan->extra_rows;
  const bool encoded = std::ranges::any_of(
      spec->roles(), [](const CastRole& r) { return r.encodes && r.role != Role::kEncoder; });
  if (encoded && spec->conditioning_tokens.empty()) {
    spec->conditioning_tokens = spec->encoder_tokens.empty() ? spec->prompt : spec->encoder_tokens;
  }
  const auto read = static_cast<int64_t>(
      spec->conditioning_tokens.empty() ? spec->prompt.size() : spec->conditioning_tokens.size());
  if (read <= plan->prompt_length) return absl::OkStatus();
  return too_long(
      read, absl::StrCat(plan->prompt_length, " (context of ", plan->reader, ", which reads it)"));
}

// The client's constraint, or that of its tools.
absl::StatusOr<std::shared_ptr<GrammarConstraint>> resolve_answer_constraint(
    const Deployment& deployment, const LoadedModel& model, const GenerateRequest& request,
    const std::optional<AnswerPlan>& answer) {
  TANDEM_ASSIGN_OR_RETURN(
      const std::optional<GrammarSpec> constraint,
      answer_constraint(deployment.answer_format(model), answer, request, *model.tokenizer));
  auto resolved = resolve_constraint(deployment, model, request, constraint);
  if (constraint == request.constraint || !absl::IsInvalidArgument(resolved.status())) {
    return resolved;
  }
  return at_fault(resolved.status(), request, [&](const GrammarSpec& spec) {
    return resolve_constraint(deployment, model, request, spec).status();
  });
}

// The adapter that the request was accepted with, or else names.
template <class Request>
absl::StatusOr<AdapterRef> adapter_of(const Deployment& deployment, const Request& request) {
  if (request.lease) return request.lease;
  return known_adapter(deployment, request.adapter);
}

absl::Status check_generates(const Deployment& deployment, absl::string_view call) {
  const ModelShape& shape = deployment.large->shape;
  if (!shape.embeds_only) return absl::OkStatus();
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat(
          call, ": model \"", deployment.name, "\" ",
          shape.bidirectional ? "is bidirectional" : "has no output matrix", "; offered: Embed")),
      "METHOD_NOT_OFFERED");
}

// The text before the input. Token ids have none.
absl::StatusOr<std::string> prefix_of(const EmbeddingSettings& settings,
                                      const EmbedRequest& request) {
  const bool named = !request.prompt_name.empty();
  if (!std::holds_alternative<std::string>(request.prompt)) {
    if (!named && !request.prefix.has_value()) return "";
    return out_of_range(named ? "prompt_name" : "prefix", "set", "unset with token ids");
  }
  if (request.prefix.has_value()) {
    if (!named) return *request.prefix;
    return out_of_range("prompt_name", "set", "unset with prefix");
  }
  const std::string& name = named ? request.prompt_name : settings.default_prompt;
  if (name.empty()) return "";
  const auto prompt = settings.prompts.find(name);
  if (prompt != settings.prompts.end()) return prompt->second;
  std::vector<std::string> names;
  for (const auto& [known, text] : settings.prompts) names.push_back(known);
  return out_of_range(
      "prompt_name", quote_value(name),
      names.empty() ? "unset: the model's files have no prompts" : absl::StrJoin(names, ", "));
}

}  // namespace

absl::StatusOr<Resolved> resolve(const Deployment& deployment, const GenerateRequest& request,
                                 uint64_t fresh_seed) {
  TANDEM_RETURN_IF_ERROR(check_generates(deployment, "generate"));
  TANDEM_ASSIGN_OR_RETURN(const AdapterRef adapter, adapter_of(deployment, request));
  Resolved resolved;
  SequenceSpec& spec = resolved.spec;
  const Writer writer = writer_of(deployment, request);
  const LoadedModel& model = writer.model;

  // Independent fields first, so that one error reports all that are wrong.
  Violations wrong;
  const absl::StatusOr<SamplingParams> params = resolve_params(writer, request.sampling);
  wrong.add(params.status());
  absl::StatusOr<TokenizedPrompt> prompt = tokenize_prompt(deployment, request);
  wrong.add(prompt.status());
  spec.stops.stop_tokens =
      resolve_stop_tokens(request.stopping.stop_token_ids, writer.vocab_size, &wrong);
  wrong.add(check_truncation(request.truncate_prompt_tokens));
  wrong.add(check_top_logprobs(request.top_logprobs));
  TANDEM_RETURN_IF_ERROR(wrong.status());

  spec.warp = sampling::warp_of(*params);
  spec.warp.vocab = writer.vocab_size;
  spec.warp.seed = request.sampling.seed.value_or(fresh_seed);
  // Beam search draws nothing, whatever generation_config.json sets.
  if (searches_beams(request) && !request.sampling.temperature) spec.warp.temperature = 0;

  resolved.tokenizer = model.tokenizer;
  resolved.context = std::move(prompt->context);
  TANDEM_RETURN_IF_ERROR(set_prompt(deployment, model, *std::move(prompt), &spec));
  if (model.encoder != nullptr) resolved.context = spec.prompt;
  resolved.answer =
      plan_answer(deployment.answer_format(model), request, *model.tokenizer, resolved.context);
  if (resolved.answer) resolved.answer->id_seed = fresh_seed;

  const auto prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  TANDEM_ASSIGN_OR_RETURN(MethodPlan plan,
                          plan_method(deployment, request, spec.warp.greedy(), prompt_tokens));
  resolved.method = plan.method;
  resolved.contract = plan.contract;
  TANDEM_RETURN_IF_ERROR(set_plan(&plan, &spec));
  TANDEM_ASSIGN_OR_RETURN(spec.stops.max_new_tokens,
                          resolve_max_new_tokens(deployment, plan, prompt_tokens, request));
  if (!request.stopping.ignore_eos) spec.stops.eos = model.eos;
  spec.stops.include_end = request.include_eos_token;
  TANDEM_ASSIGN_OR_RETURN(spec.warp.processors,
                          resolve_processors(writer, *params, spec.stops, prompt_tokens,
                                             request.stopping.min_new_tokens));
  TANDEM_ASSIGN_OR_RETURN(resolved.constraint,
                          resolve_answer_constraint(deployment, model, request, resolved.answer));
  if (resolved.constraint) constrain(resolved.constraint, &spec);
  resolved.stops = std::make_shared<const StopStrings>(request.stopping.stop_sequences);
  if (resolved.stops->any()) {
    spec.stops.text = std::make_unique<MatchingStops>(
        model.tokenizer, request.skip_special_tokens, resolved.context,
        resolved.answer ? resolved.answer->markers : std::vector<Token>(), resolved.stops);
  }
  spec.top_logprobs = static_cast<int>(std::min<int64_t>(request.top_logprobs, writer.vocab_size));
  spec.logprobs = request.logprobs || request.top_logprobs > 0;
  spec.raw_logprobs = request.raw_logprobs;
  spec.trace = request.trace;
  spec.priority = request.priority;
  spec.client = request.client;
  spec.salt = deployment.prefix_salt(request.client);
  if (&model == deployment.large) spec.history = deployment.history;
  spec.deadline = request.deadline;
  spec.series = deployment.series.at(resolved.method).get();
  spec.adapter_series = adapter ? adapter->series.get() : nullptr;
  spec.lease = adapter;
  return resolved;
}

absl::StatusOr<ResolvedScore> resolve(const Deployment& deployment, const ScoreRequest& request) {
  TANDEM_RETURN_IF_ERROR(check_generates(deployment, "score"));
  ResolvedScore resolved;
  TANDEM_ASSIGN_OR_RETURN(resolved.adapter, adapter_of(deployment, request));
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
  TANDEM_RETURN_IF_ERROR(check_top_logprobs(request.top_logprobs));
  resolved.begin = request.score_prompt ? 1 : static_cast<int>(resolved.prompt_tokens);
  return resolved;
}

absl::StatusOr<ResolvedEmbed> resolve(const Deployment& deployment, const EmbedRequest& request) {
  const LoadedModel& model = *deployment.large;
  if (model.encoder != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("embed: model \"", deployment.name, "\" has an encoder; offered: Generate"));
  }
  Violations wrong;
  ResolvedEmbed resolved;
  resolved.settings = &model.embedding;
  resolved.normalize = request.normalize.value_or(model.embedding.normalize);
  const auto width = static_cast<int64_t>(model.embedding.width(model.shape.hidden_size));
  if (request.dimensions < 0 || request.dimensions > width) {
    wrong.add(out_of_range("dimensions", request.dimensions, absl::StrCat("1 to ", width)));
  }
  resolved.dimensions = static_cast<size_t>(request.dimensions > 0 ? request.dimensions : width);
  absl::StatusOr<std::string> prefix = prefix_of(model.embedding, request);
  wrong.add(prefix.status());
  TANDEM_RETURN_IF_ERROR(wrong.status());
  Prompt prompt = request.prompt;
  if (auto* text = std::get_if<std::string>(&prompt); text != nullptr && !text->empty()) {
    text->insert(0, *prefix);
  }
  TANDEM_ASSIGN_OR_RETURN(resolved.tokens,
                          tokenize(deployment, prompt, request.add_special_tokens));
  const auto n = static_cast<int64_t>(resolved.tokens.size());
  // The pass of a bidirectional model is never divided.
  const bool whole = model.shape.bidirectional && deployment.step_rows < deployment.context_length;
  const int64_t most = whole ? deployment.step_rows : deployment.context_length;
  if (n > most) {
    return with_reason(
        out_of_range("input", absl::StrCat(n, " tokens"),
                     absl::StrCat("at most ", most, whole ? " (limits.step_rows)" : "")),
        "CONTEXT_LENGTH_EXCEEDED");
  }
  return resolved;
}

}  // namespace tandem
