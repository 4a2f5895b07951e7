// The way of a request from submit() to the loop.
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/decode/score.h"
#include "engine/host/engine_impl.h"
#include "engine/host/requests/listeners.h"
#include "engine/host/requests/request_size.h"
#include "engine/host/requests/resolve.h"
#include "engine/host/requests/stream.h"
#include "engine/sched/admission_queue.h"

namespace tandem {
namespace {

// From the system, so that nobody finds other clients' seeds by his own. Fits clients without
// unsigned integers.
uint64_t fresh_seed() {
  uint64_t seed = 0;
  TANDEM_CHECK(getentropy(&seed, sizeof(seed)) == 0);
  return seed >> 1;
}

int64_t memory_of(const SequenceSpec& spec, int64_t choices) {
  const size_t tokens = spec.prompt.size() + spec.encoder_tokens.size() +
                        spec.conditioning_tokens.size() + spec.alignment.size();
  return choices * static_cast<int64_t>(sizeof(SequenceSpec) + tokens * sizeof(Token));
}

}  // namespace

// --- In

absl::Status Engine::Impl::refused(RejectReason reason, absl::Status status) {
  metrics.rejected[static_cast<size_t>(reason)].add();
  if (status.code() != absl::StatusCode::kResourceExhausted || status.GetPayload(kRetryPayload)) {
    return status;
  }
  return with_retry_hint(std::move(status), loop->retry_hint());
}

void Engine::Impl::count_failure(const absl::Status& status) {
  const int code = std::clamp(static_cast<int>(status.code()), 0, kStatusCodes - 1);
  metrics.refused[static_cast<size_t>(code)].add();
}

template <class Request>
absl::StatusOr<const Deployment*> Engine::Impl::check(const Request& request) {
  if (draining.load()) {
    return refused(
        RejectReason::kDraining,
        with_reason(absl::UnavailableError("the server is draining; try another one"), "DRAINING"));
  }
  const absl::StatusOr<const Deployment*> deployment = find(request.model);
  if (!deployment.ok()) return refused(RejectReason::kInvalid, deployment.status());
  absl::Status size = check_size(**deployment, request, budget.largest());
  if (!size.ok()) return refused(RejectReason::kInvalid, std::move(size));
  if constexpr (requires { request.priority; }) {
    absl::Status right = quotas.check_priority(request.client, request.priority);
    if (!right.ok()) return refused(RejectReason::kPriority, std::move(right));
  }
  return *deployment;
}

absl::StatusOr<std::shared_ptr<Claims>> Engine::Impl::claim(const std::string& client,
                                                            int64_t bytes) {
  RejectReason reason = RejectReason::kQueueFull;
  absl::StatusOr<Quotas::Open> open = quotas.open(client, &reason);
  if (!open.ok()) return refused(reason, open.status());
  absl::StatusOr<WaitingBudget::Part> part = budget.take(client, bytes, &reason);
  if (!part.ok()) return refused(reason, part.status());
  return std::make_shared<Claims>(*std::move(part), *std::move(open));
}

absl::Status Engine::Impl::enter(Ingress::Arrival arrival, Claims* claims) {
  {
    const std::lock_guard lock(mutex);
    ++live;
  }
  absl::Status status = ingress.enter(std::move(arrival));
  if (status.ok()) return status;
  claims->ended();
  one_gone();
  return refused(absl::IsUnavailable(status) ? RejectReason::kDraining : RejectReason::kQueueFull,
                 std::move(status));
}

template <class Request>
RequestId Engine::Impl::take(Request request, const std::function<void(const Turn<Request>&)>& turn,
                             const std::function<void(const absl::Status&)>& fail) {
  const RequestId id = next_id.fetch_add(1);
  const auto try_enter = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Deployment* const deployment, check(request));
    Ingress::Arrival arrival;
    arrival.id = id;
    arrival.client = request.client;
    arrival.bytes = bytes_of(request);
    arrival.submitted = clock.now();
    arrival.deadline = request.deadline;
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Claims> claims,
                            claim(request.client, arrival.bytes));
    arrival.go = [this, turn, fail,
                  own = Turn<Request>{id, std::move(request), deployment, arrival.submitted,
                                      claims}](const absl::Status& verdict) {
      if (verdict.ok()) return turn(own);
      if (absl::IsResourceExhausted(verdict)) {
        metrics.rejected[static_cast<size_t>(RejectReason::kQueueTime)].add();
      }
      count_failure(verdict);
      own.claims->ended();
      fail(verdict);
      one_gone();
    };
    return enter(std::move(arrival), claims.get());
  };
  const absl::Status status = try_enter();
  if (!status.ok()) {
    count_failure(status);
    fail(status);
  }
  return id;
}

RequestId Engine::submit(GenerateRequest request, const std::shared_ptr<Sink>& sink) {
  return impl_->take<GenerateRequest>(
      std::move(request),
      [impl = impl_.get(), sink](const Turn<GenerateRequest>& turn) { impl->prepare(turn, sink); },
      [sink](const absl::Status& status) { sink->failed(status); });
}

RequestId Engine::score(ScoreRequest request,
                        const std::function<void(absl::StatusOr<ScoreResult>)>& done) {
  return impl_->take<ScoreRequest>(
      std::move(request),
      [impl = impl_.get(), done](const Turn<ScoreRequest>& turn) { impl->prepare(turn, done); },
      [done](const absl::Status& status) { done(status); });
}

RequestId Engine::tokenize(TokenizeRequest request,
                           const std::function<void(absl::StatusOr<std::vector<Token>>)>& done) {
  return impl_->take<TokenizeRequest>(
      std::move(request),
      [impl = impl_.get(), done](const Turn<TokenizeRequest>& turn) {
        auto tokens = tandem::tokenize(*turn.deployment, turn.request.prompt,
                                       turn.request.add_special_tokens);
        if (!tokens.ok()) impl->count_failure(tokens.status());
        turn.claims->ended();
        done(std::move(tokens));
        impl->one_gone();
      },
      [done](const absl::Status& status) { done(status); });
}

RequestId Engine::detokenize(DetokenizeRequest request,
                             const std::function<void(absl::StatusOr<std::string>)>& done) {
  return impl_->take<DetokenizeRequest>(
      std::move(request),
      [impl = impl_.get(), done](const Turn<DetokenizeRequest>& turn) {
        auto text = tandem::detokenize(*turn.deployment, turn.request.token_ids,
                                       turn.request.skip_special_tokens);
        if (!text.ok()) impl->count_failure(text.status());
        turn.claims->ended();
        done(std::move(text));
        impl->one_gone();
      },
      [done](const absl::Status& status) { done(status); });
}

void Engine::cancel(RequestId id) {
  if (impl_->ingress.cancel(id)) return;
  impl_->loop->stop(id, absl::CancelledError("cancelled by the client"));
}

// --- On a thread of the ingress

void Engine::Impl::prepare(const Turn<GenerateRequest>& turn, const std::shared_ptr<Sink>& sink) {
  const GenerateRequest& request = turn.request;
  const Deployment& deployment = *turn.deployment;
  const auto fail = [&](const absl::Status& status) {
    count_failure(status);
    turn.claims->ended();
    sink->failed(status);
    one_gone();
  };
  if (request.n < 1 || request.n > config.limits.max_choices) {
    return fail(
        refused(RejectReason::kInvalid,
                out_of_range("n", request.n, absl::StrCat("1 to ", config.limits.max_choices))));
  }
  absl::StatusOr<Resolved> resolved = resolve(deployment, request, fresh_seed());
  if (!resolved.ok()) return fail(refused(RejectReason::kInvalid, resolved.status()));

  SequenceSpec spec = std::move(resolved->spec);
  StreamPlan plan;
  plan.started.request_id =
      request.request_id.empty() ? absl::StrCat("r", turn.id) : request.request_id;
  plan.started.prompt_tokens = spec.prompt_tokens();
  plan.started.method = resolved->method;
  plan.started.contract = resolved->contract;
  plan.seed = spec.warp.seed;
  plan.logprobs = spec.logprobs;
  plan.tokenizer = resolved->tokenizer;
  plan.skip_special_tokens = request.skip_special_tokens;
  plan.context = std::move(resolved->context);
  plan.stops = resolved->stops;
  plan.include_stop_sequence = request.stopping.include_stop_sequence;

  spec.submitted = turn.submitted;
  if (request.stopping.time_limit) spec.time_limit = turn.submitted + *request.stopping.time_limit;
  const auto n = static_cast<int>(request.n);
  turn.claims->waiting.resize(memory_of(spec, n));
  turn.claims->open.charge(spec.prompt_tokens());
  plan.claims = turn.claims;
  auto streams = request_streams(&text, std::move(plan), n, sink, [this] { one_gone(); });
  std::vector<SequenceSpec> choices(static_cast<size_t>(n), spec);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].id = i == 0 ? turn.id : next_id.fetch_add(1);
    choices[i].warp.choice = static_cast<uint32_t>(i);
    choices[i].listener = std::move(streams[i]);
  }
  const absl::Status passed = ingress.pass(turn.id, [&] { loop->submit(std::move(choices)); });
  if (!passed.ok()) fail(passed);
}

void Engine::Impl::prepare(const Turn<ScoreRequest>& turn,
                           const std::function<void(absl::StatusOr<ScoreResult>)>& done) {
  const ScoreRequest& request = turn.request;
  const Deployment& deployment = *turn.deployment;
  const auto fail = [&](const absl::Status& status) {
    count_failure(status);
    turn.claims->ended();
    done(status);
    one_gone();
  };
  absl::StatusOr<ResolvedScore> resolved = resolve(deployment, request);
  if (!resolved.ok()) return fail(refused(RejectReason::kInvalid, resolved.status()));

  SequenceSpec spec;
  spec.id = turn.id;
  spec.prompt = resolved->tokens;
  spec.warp.vocab = deployment.vocab_size;
  spec.cast = make_cast({{Role::kLarge, deployment.large->id}});
  spec.priority = request.priority;
  spec.client = request.client;
  spec.salt = deployment.prefix_salt(request.client);
  spec.submitted = turn.submitted;
  spec.deadline = request.deadline;
  turn.claims->open.charge(static_cast<int64_t>(spec.prompt.size()));
  turn.claims->waiting.resize(memory_of(spec, 2));  // the listener has the tokens too
  const auto listener = std::make_shared<ScoreListener>(&text, *std::move(resolved), turn.claims,
                                                        done, [this] { one_gone(); });
  spec.listener = listener;
  const int top = static_cast<int>(request.top_logprobs);
  spec.method = [begin = listener->begin(), top, out = listener->scored()](Gen g) {
    return tandem::score(g, begin, top, out);
  };
  const absl::Status passed = ingress.pass(turn.id, [&] { loop->submit(std::move(spec)); });
  if (!passed.ok()) fail(passed);
}

}  // namespace tandem
