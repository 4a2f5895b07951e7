#include "server/http/completion_batch.h"

#include <array>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/base/violations.h"

namespace tandem {
namespace {

// Special tokens around prefix and suffix: A prefix B suffix C. The model continues with the
// middle.
struct MiddleTokens {
  absl::string_view before_prefix, before_suffix, before_middle;
};
constexpr std::array kMiddleTokens = {
    MiddleTokens{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen, CodeGemma
    MiddleTokens{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder
    MiddleTokens{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek
    MiddleTokens{"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},        // SantaCoder
};

// "text" or "prompt[3]" -> "prompt[I]" + the rest.
std::string with_index(const std::string& field, int prompt) {
  for (const absl::string_view name : {"text", "token_ids", "prompt tokens", "prompt"}) {
    if (!absl::StartsWith(field, name)) continue;
    return absl::StrCat("prompt[", prompt, "]", absl::string_view(field).substr(name.size()));
  }
  return field;
}

}  // namespace

absl::Status of_prompt(const absl::Status& status, int prompt) {
  const std::vector<Violation> violations = violations_of(status);
  if (violations.empty()) return status;
  Violations out;
  for (const Violation& v : violations) {
    out.add(wrong_field(with_index(v.field, prompt), v.description));
  }
  absl::Status named = out.status();
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    if (!named.GetPayload(type).has_value()) named.SetPayload(type, payload);
  });
  return named;
}

// Forwards the events of one prompt's request.
class CompletionBatch::PartSink final : public Sink {
 public:
  PartSink(std::shared_ptr<CompletionBatch> batch, int prompt, Echo echo)
      : batch_(std::move(batch)), prompt_(prompt), echo_(std::move(echo)) {}

  void made(int64_t tokens) override { batch_->forward_made(tokens); }
  void started(const Started& event) override {
    batch_->forward_start(prompt_, event, std::move(echo_));
  }
  void chunk(Chunk event) override {
    event.index += prompt_ * batch_->per_prompt_;
    batch_->forward([&](BatchSink& sink) { sink.chunk(std::move(event)); });
  }
  void finished(const Finished& event) override { batch_->forward_end(prompt_, event); }
  void failed(const absl::Status& status) override { batch_->fail(prompt_, status); }

 private:
  const std::shared_ptr<CompletionBatch> batch_;
  const int prompt_;
  Echo echo_;
};

CompletionBatch::CompletionBatch(Engine* engine, Plan plan, std::shared_ptr<BatchSink> sink)
    : engine_(engine),
      texts_(take_prompts(&plan)),
      plan_(std::move(plan)),
      per_prompt_(static_cast<int>(plan_.request.n)),
      prompts_(static_cast<int>(texts_.size())),
      made_(sink),
      sink_(std::move(sink)),
      unfinished_(choices()),
      parts_(static_cast<size_t>(prompts_)) {}

std::vector<Prompt> CompletionBatch::take_prompts(Plan* plan) {
  std::vector<Prompt> out = std::exchange(plan->more_prompts, {});
  out.insert(out.begin(), std::exchange(plan->request.prompt, {}));
  return out;
}

void CompletionBatch::start() {
  for (int i = 0; i < prompts_; ++i) begin(i);
}

// --- Steps

void CompletionBatch::begin(int prompt) {
  if (!plan_.suffix.empty()) return fill_in_the_middle(0);
  if (!plan_.echo) return generate(prompt, std::move(texts_[static_cast<size_t>(prompt)]), {});
  if (plan_.score || !plan_.generate) return score(prompt);
  detokenize(prompt, {}, {});
}

// The tokenizer has the tokens of a family if their names become one token each.
void CompletionBatch::fill_in_the_middle(size_t family) {
  if (family == kMiddleTokens.size()) {
    return fail(0, out_of_range("suffix", absl::StrCat(plan_.suffix.size(), " bytes"),
                                absl::StrCat("unset, as model ", quote_value(plan_.request.model),
                                             " has no fill-in-the-middle tokens")));
  }
  const MiddleTokens& names = kMiddleTokens[family];
  TokenizeRequest request;
  request.model = plan_.request.model;
  request.client = plan_.request.client;
  request.host = plan_.request.host;
  request.deadline = plan_.request.deadline;
  request.add_special_tokens = false;
  request.prompt = absl::StrCat(names.before_prefix, names.before_suffix, names.before_middle);
  const auto done = [batch = shared_from_this(),
                     family](const absl::StatusOr<std::vector<Token>>& tokens) {
    if (!tokens.ok()) return batch->fail(0, tokens.status());
    if (tokens->size() != 3) return batch->fill_in_the_middle(family + 1);
    const MiddleTokens& found = kMiddleTokens[family];
    batch->generate(0,
                    absl::StrCat(found.before_prefix,
                                 std::get<std::string>(std::exchange(batch->texts_[0], {})),
                                 found.before_suffix, batch->plan_.suffix, found.before_middle),
                    {});
  };
  make_request(0, [&] { return engine_->tokenize(std::move(request), done); });
}

void CompletionBatch::score(int prompt) {
  ScoreRequest request;
  request.model = plan_.request.model;
  request.adapter = plan_.request.adapter;
  request.request_id = plan_.request.request_id;
  request.client = plan_.request.client;
  request.host = plan_.request.host;
  request.prompt = texts_[static_cast<size_t>(prompt)];
  request.score_prompt = true;
  request.add_special_tokens = plan_.request.add_special_tokens;
  request.top_logprobs = plan_.request.top_logprobs;
  request.priority = plan_.request.priority;
  request.deadline = plan_.request.deadline;
  const auto done = [batch = shared_from_this(), prompt](absl::StatusOr<ScoreResult> result) {
    if (!result.ok()) return batch->fail(prompt, result.status());
    batch->detokenize(prompt, std::move(result->prompt), result->usage);
  };
  make_request(prompt, [&] { return engine_->score(std::move(request), done); });
}

// Gets the text of the prompt. `tokens`: its scored tokens, if any.
void CompletionBatch::detokenize(int prompt, std::vector<TokenInfo> tokens, const Usage& usage) {
  if (const auto* const text = std::get_if<std::string>(&texts_[static_cast<size_t>(prompt)])) {
    return echo_then_generate(prompt, {*text, std::move(tokens)}, usage);
  }
  DetokenizeRequest request;
  request.model = plan_.request.model;
  request.client = plan_.request.client;
  request.host = plan_.request.host;
  request.deadline = plan_.request.deadline;
  request.skip_special_tokens = plan_.request.skip_special_tokens;
  const auto& ids = std::get<std::vector<Token>>(texts_[static_cast<size_t>(prompt)]);
  request.token_ids.assign(ids.begin(), ids.end());
  const auto done = [batch = shared_from_this(), prompt, tokens = std::move(tokens),
                     usage](absl::StatusOr<std::string> text) {
    if (!text.ok()) return batch->fail(prompt, text.status());
    batch->echo_then_generate(prompt, {*std::move(text), tokens}, usage);
  };
  make_request(prompt, [&] { return engine_->detokenize(std::move(request), done); });
}

void CompletionBatch::echo_then_generate(int prompt, Echo echo, const Usage& usage) {
  if (plan_.generate) {
    return generate(prompt, std::move(texts_[static_cast<size_t>(prompt)]), std::move(echo));
  }
  Started started;
  started.request_id = plan_.request.request_id;
  started.prompt_tokens = usage.prompt_tokens;
  started.method = kAutoregressive;
  forward_start(prompt, started, std::move(echo));
  for (int i = 0; i < per_prompt_; ++i) {
    Finished finished;
    finished.index = i;
    finished.method = kAutoregressive;
    finished.usage = usage;
    forward_end(prompt, finished);
  }
}

void CompletionBatch::generate(int prompt, Prompt text, Echo echo) {
  GenerateRequest request = plan_.request;
  request.prompt = std::move(text);
  make_request(prompt, [&] {
    return engine_->submit(std::move(request),
                           std::make_shared<PartSink>(shared_from_this(), prompt, std::move(echo)));
  });
}

template <class Submit>
void CompletionBatch::make_request(int prompt, const Submit& submit) {
  int step = 0;
  {
    const MutexLock lock(&requests_mutex_);
    if (!cancelled_) step = ++parts_[static_cast<size_t>(prompt)].step;
  }
  if (step == 0) return fail(prompt, absl::CancelledError("cancelled by the client"));
  const RequestId id = submit();
  const MutexLock lock(&requests_mutex_);
  Part& part = parts_[static_cast<size_t>(prompt)];
  if (part.step != step) return;  // it has ended, and the next one has begun
  part.id = id;
  if (cancelled_) return engine_->cancel(id);
  if (paused_) engine_->pause(id);
}

void CompletionBatch::pause() {
  const MutexLock lock(&requests_mutex_);
  paused_ = true;
  for (const Part& part : parts_) {
    if (part.id != 0) engine_->pause(part.id);
  }
}

void CompletionBatch::resume() {
  const MutexLock lock(&requests_mutex_);
  paused_ = false;
  for (const Part& part : parts_) {
    if (part.id != 0) engine_->resume(part.id);
  }
}

void CompletionBatch::cancel() {
  const MutexLock lock(&requests_mutex_);
  cancelled_ = true;
  for (const Part& part : parts_) {
    if (part.id != 0) engine_->cancel(part.id);
  }
}

// --- Events

template <class Event>
void CompletionBatch::forward(const Event& event) {
  const MutexLock lock(&events_mutex_);
  if (sink_ != nullptr) event(*sink_);
}

void CompletionBatch::forward_made(int64_t tokens) {
  if (const std::shared_ptr<BatchSink> sink = made_.lock()) sink->made(tokens);
}

void CompletionBatch::forward_start(int prompt, const Started& event, Echo echo) {
  forward([&](BatchSink& sink) {
    sink.started(prompt, event);
    if (!plan_.echo) return;
    for (int i = 0; i < per_prompt_; ++i) {
      sink.echo(prompt * per_prompt_ + i, echo.text, echo.tokens);
    }
  });
}

void CompletionBatch::forward_end(int prompt, Finished event) {
  std::shared_ptr<BatchSink> last;  // released without the lock
  const MutexLock lock(&events_mutex_);
  if (sink_ == nullptr) return;
  event.index += prompt * per_prompt_;
  sink_->finished(std::move(event));
  if (--unfinished_ == 0) last = std::exchange(sink_, nullptr);
}

void CompletionBatch::fail(int prompt, const absl::Status& status) {
  std::shared_ptr<BatchSink> last;
  {
    const MutexLock lock(&events_mutex_);
    last = std::exchange(sink_, nullptr);
    if (last == nullptr) return;
    last->failed(prompts_ > 1 ? of_prompt(status, prompt) : status);
  }
  cancel();
}

}  // namespace tandem
