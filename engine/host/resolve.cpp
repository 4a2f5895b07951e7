#include "engine/host/resolve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"
#include "engine/host/alignment.h"
#include "engine/host/methods.h"
#include "engine/host/request_size.h"
#include "engine/sampling/params.h"
#include "engine/sampling/processors.h"
#include "engine/sampling/warp.h"
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

// Whose tokens a request's answer is in.
struct Writer {
  const LoadedModel& model;
  int vocab_size;  // ids that may be drawn
};
Writer writer_of(const Deployment& d, const GenerateRequest& request) {
  if (d.small_writes(request)) return {*d.small, d.small_vocab_size};
  return {*d.large, d.vocab_size};
}

absl::StatusOr<SamplingParams> resolve_params(const Writer& writer, const SamplingFields& fields) {
  SamplingParams p = resolve_sampling(fields, writer.model.defaults);
  TANDEM_RETURN_IF_ERROR(sampling::validate(p, writer.vocab_size));
  return p;
}

// Null where they change nothing.
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

// A prompt as text: a client's, or what a template made of a chat.
struct Written {
  std::string text;
  bool add_special_tokens;
};

// chat: whose template.
absl::StatusOr<Written> written_prompt(const Deployment& deployment, const LoadedModel& chat,
                                       const Prompt& prompt, bool add_special_tokens) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    if (text->empty()) return out_of_range("prompt", "empty", "1 token or more");
    return Written{*text, add_special_tokens};
  }
  if (!chat.chat || !chat.chat->present()) {
    return with_reason(
        absl::FailedPreconditionError(absl::StrCat("chat: model \"", deployment.name,
                                                   "\" has no chat template; offered: text, "
                                                   "token_ids")),
        "NO_CHAT_TEMPLATE");
  }
  const auto& messages = std::get<ChatPrompt>(prompt);
  TANDEM_ASSIGN_OR_RETURN(
      std::string rendered,
      chat.chat->render(messages.messages_json, messages.tools_json, messages.template_args_json,
                        messages.add_generation_prompt));
  TANDEM_RETURN_IF_ERROR(check_text(deployment, "chat, rendered", rendered.size()));
  return Written{std::move(rendered), false};
}

absl::StatusOr<std::vector<Token>> cut(const Written& written, const LoadedModel& model,
                                       int vocab_size) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<Token> tokens,
                          model.tokenizer->encode(written.text, written.add_special_tokens));
  if (tokens.empty()) return out_of_range("prompt", "empty", "1 token or more");
  // A tokenizer may know more ids than the model has rows.
  TANDEM_RETURN_IF_ERROR(check_tokens("prompt tokens", tokens, vocab_size));
  return tokens;
}

// A prompt in the tokens of those who read it.
struct Cut {
  std::vector<Token> tokens;   // of the rows that the writer sees
  std::vector<Token> read;     // those of the large model, where it does not run these
  std::vector<int> beside;     // SequenceSpec::beside
  std::vector<Token> context;  // the last of the text as the writer's tokenizer has it
};

void keep_end(int64_t keep, Cut* prompt) {
  const int64_t drop = static_cast<int64_t>(prompt->tokens.size()) - keep;
  if (drop <= 0) return;
  prompt->tokens.erase(prompt->tokens.begin(), prompt->tokens.begin() + drop);
  if (prompt->beside.empty()) return;
  prompt->beside.erase(prompt->beside.begin(), prompt->beside.begin() + drop);
  const int unread = prompt->beside.front();
  prompt->read.erase(prompt->read.begin(), prompt->read.begin() + unread);
  for (int& row : prompt->beside) row -= unread;
}

// For a small model that writes in tokens of its own.
absl::StatusOr<Cut> cut_apart(const Deployment& d, const GenerateRequest& request) {
  const AdapterShape& told = *d.told_by;
  const bool is_text = !std::holds_alternative<std::vector<Token>>(request.prompt);
  Cut out;
  if (!told.aligned) {  // in the large model's
    TANDEM_ASSIGN_OR_RETURN(out.tokens, tokenize(d, request.prompt, request.add_special_tokens));
    if (!told.foreign || !is_text) return out;
    TANDEM_ASSIGN_OR_RETURN(const Written written, written_prompt(d, *d.large, request.prompt,
                                                                  request.add_special_tokens));
    TANDEM_ASSIGN_OR_RETURN(out.context, d.small->tokenizer->encode(written.text, false));
    return out;
  }
  if (!is_text) {
    return out_of_range(
        "prompt", "token_ids",
        absl::StrCat("text, chat with method ", d.told_method, " (", d.large->config.name, " and ",
                     d.small->config.name, " have different tokens)"));
  }
  const bool own_template = d.small->chat && d.small->chat->present();
  TANDEM_ASSIGN_OR_RETURN(const Written written,
                          written_prompt(d, own_template ? *d.small : *d.large, request.prompt,
                                         request.add_special_tokens));
  TANDEM_ASSIGN_OR_RETURN(out.read, cut(written, *d.large, d.vocab_size));
  TANDEM_ASSIGN_OR_RETURN(out.tokens, cut(written, *d.small, d.small_vocab_size));
  out.beside =
      align_tokens(written.text, *d.large->tokenizer, out.read, *d.small->tokenizer, out.tokens);
  return out;
}

absl::StatusOr<Cut> cut_prompt(const Deployment& d, const GenerateRequest& request) {
  if (request.truncate_prompt_tokens && *request.truncate_prompt_tokens < 1) return Cut();  // told
  Cut out;
  const bool apart = d.small_writes(request);
  if (apart) {
    TANDEM_ASSIGN_OR_RETURN(out, cut_apart(d, request));
  } else {
    TANDEM_ASSIGN_OR_RETURN(out.tokens, tokenize(d, request.prompt, request.add_special_tokens));
  }
  if (request.truncate_prompt_tokens) keep_end(*request.truncate_prompt_tokens, &out);
  const std::vector<Token>& written = apart && d.told_by->foreign ? out.context : out.tokens;
  const auto last = static_cast<ptrdiff_t>(std::min(written.size(), kDecodeContext));
  out.context = std::vector<Token>(written.end() - last, written.end());
  return out;
}

// What a reader runs, where a role has its rows.
void give_to_reader(Cut prompt, SequenceSpec* spec) {
  spec->read = std::move(prompt.read);
  spec->beside = std::move(prompt.beside);
  const bool sees_all = std::ranges::any_of(spec->roles, &RoleModel::sees_all);
  if (sees_all && spec->read.empty())
    spec->read = spec->source.empty() ? spec->prompt : spec->source;
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
  if (const auto* ids = std::get_if<std::vector<Token>>(&prompt)) {
    TANDEM_RETURN_IF_ERROR(check_tokens("token_ids", *ids, deployment.vocab_size));
    if (ids->empty()) return out_of_range("prompt", "empty", "1 token or more");
    return *ids;
  }
  TANDEM_ASSIGN_OR_RETURN(const Written written,
                          written_prompt(deployment, model, prompt, add_special_tokens));
  return cut(written, model, deployment.vocab_size);
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
  const Writer writer = writer_of(deployment, request);
  const LoadedModel& model = writer.model;

  // What stands on its own is looked at before what needs it, so that all that is wrong is told.
  Violations wrong;
  const absl::StatusOr<SamplingParams> resolved_params = resolve_params(writer, request.sampling);
  wrong.add(resolved_params.status());
  absl::StatusOr<Cut> prompt = cut_prompt(deployment, request);
  wrong.add(prompt.status());
  spec.stops.stop_tokens =
      resolve_stop_tokens(request.stopping.stop_token_ids, writer.vocab_size, &wrong);
  if (request.truncate_prompt_tokens && *request.truncate_prompt_tokens < 1) {
    wrong.add(out_of_range("truncate_prompt_tokens", *request.truncate_prompt_tokens, "1 or more"));
  }
  if (request.top_logprobs < 0 || request.top_logprobs > 20) {
    wrong.add(out_of_range("top_logprobs", request.top_logprobs, "0 to 20"));
  }
  TANDEM_RETURN_IF_ERROR(wrong.status());

  const SamplingParams& params = *resolved_params;
  spec.prompt = std::move(prompt->tokens);
  resolved.tokenizer = model.tokenizer;
  resolved.context = std::move(prompt->context);
  spec.warp = sampling::warp_of(params);
  spec.warp.vocab = writer.vocab_size;
  spec.warp.seed = request.sampling.seed.value_or(fresh_seed);
  // A search draws nothing, whatever the model's generation_config.json likes.
  if (searches_beams(request) && !request.sampling.temperature) spec.warp.temperature = 0;

  if (model.encoder != nullptr) {
    spec.source = std::exchange(spec.prompt, {model.start_token});
    resolved.context = spec.prompt;
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
  give_to_reader(*std::move(prompt), &spec);
  const auto read = spec.read.empty() ? prompt_tokens : static_cast<int64_t>(spec.read.size());
  if (read > plan.prompt_length) {
    return too_long(
        read, absl::StrCat(plan.prompt_length, " (context of ", plan.reader, ", which reads it)"));
  }
  TANDEM_ASSIGN_OR_RETURN(
      spec.stops.max_new_tokens,
      resolve_max_new_tokens(deployment, plan, prompt_tokens, request.stopping.max_new_tokens));
  if (!request.stopping.ignore_eos) spec.stops.eos = model.eos;
  spec.stops.include_end = request.include_eos_token;
  TANDEM_ASSIGN_OR_RETURN(spec.warp.processors,
                          resolve_processors(writer, params, spec.stops, prompt_tokens,
                                             request.stopping.min_new_tokens));
  resolved.stops = std::make_shared<const StopStrings>(request.stopping.stop_sequences);
  if (resolved.stops->any()) {
    spec.stops.text = std::make_unique<MatchingStops>(model.tokenizer, request.skip_special_tokens,
                                                      resolved.context, resolved.stops);
  }
  spec.top_logprobs = static_cast<int>(std::min<int64_t>(request.top_logprobs, writer.vocab_size));
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
