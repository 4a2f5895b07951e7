// Requests from submit() to the loop.
#include <sys/random.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "engine/decode/embed.h"
#include "engine/decode/ngram_index.h"
#include "engine/decode/score.h"
#include "engine/host/engine_impl.h"
#include "engine/host/methods/registry.h"
#include "engine/host/requests/listeners.h"
#include "engine/host/requests/request_size.h"
#include "engine/host/requests/resolve.h"
#include "engine/host/requests/resolve_constraint.h"
#include "engine/host/requests/stream.h"
#include "engine/sched/admission_queue.h"
#include "engine/sched/pass_trace.h"

namespace tandem {
namespace {

// Memory of rendering and tokenizing a prompt, for each byte of its request: values of a template,
// the rendered text, pieces, tokens.
constexpr int64_t kPromptFactor = 16;

// From the system, so that clients cannot compute each other's seeds. 63 bits, for clients without
// unsigned integers.
uint64_t fresh_seed() {
  uint64_t seed = 0;
  TANDEM_CHECK(getentropy(&seed, sizeof(seed)) == 0);
  return seed >> 1;
}

// Embeddings of adapted models are not offered.
absl::Status no_embedding(const EmbedRequest& request) {
  return with_reason(
      absl::FailedPreconditionError(absl::StrCat("embed: model ", quote_value(request.model),
                                                 " names an adapter; offered: Generate, Score")),
      "METHOD_NOT_OFFERED");
}

// A lease of a sequence: its deployment, which outlives its adapter.
std::shared_ptr<const void> keep(const DeploymentRef& deployment,
                                 std::shared_ptr<const void> adapter) {
  if (adapter == nullptr) return deployment;
  return std::make_shared<const std::pair<DeploymentRef, std::shared_ptr<const void>>>(
      deployment, std::move(adapter));
}

int64_t memory_of(const SequenceSpec& spec, int64_t choices) {
  const size_t tokens = spec.prompt.size() + spec.encoder_tokens.size() +
                        spec.conditioning_tokens.size() + spec.alignment.size();
  return choices * static_cast<int64_t>(sizeof(SequenceSpec) + tokens * sizeof(Token));
}

}  // namespace

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

template <class Report>
void Engine::Impl::end_early(Claims* claims, const absl::Status& status, const Report& report) {
  if (!status.ok()) count_failure(status);
  claims->ended();
  report();
  request_ended();
}

absl::StatusOr<Target> Engine::Impl::check_model(absl::string_view model,
                                                 absl::string_view adapter) {
  if (draining.load()) {
    return refused(
        RejectReason::kDraining,
        with_reason(absl::UnavailableError("the server is draining; try another one"), "DRAINING"));
  }
  absl::StatusOr<Target> target = find(model, adapter);
  if (!target.ok()) return refused(RejectReason::kInvalid, target.status());
  return target;
}

template <class Request>
absl::StatusOr<DeploymentRef> Engine::Impl::check(Request* request) {
  std::string adapter;
  if constexpr (requires { request->adapter; }) adapter = request->adapter;
  TANDEM_ASSIGN_OR_RETURN(const Target target, check_model(request->model, adapter));
  TANDEM_RETURN_IF_ERROR(check_target(target, request));
  return target.deployment;
}

template <class Request>
absl::Status Engine::Impl::check_target(const Target& target, Request* request) {
  if constexpr (requires { request->lease; }) {
    if (target.adapter) request->adapter = target.adapter->name;
    request->lease = target.adapter;
  } else if constexpr (std::is_same_v<Request, EmbedRequest>) {
    if (target.adapter) return refused(RejectReason::kInvalid, no_embedding(*request));
  }
  absl::Status size = check_size(*target.deployment, *request, budget.largest());
  if (!size.ok()) return refused(RejectReason::kInvalid, std::move(size));
  if constexpr (requires { request->priority; }) {
    absl::Status right = quotas.check_priority(request->client, request->priority);
    if (!right.ok()) return refused(RejectReason::kPriority, std::move(right));
  }
  return absl::OkStatus();
}

template <class Request>
absl::Status Engine::Impl::find_loaded(StartedRequest<Request>* started) {
  Request& request = started->request;
  std::string adapter;
  if constexpr (requires { request.adapter; }) adapter = request.adapter;
  const absl::StatusOr<Target> target = find(request.model, adapter);
  if (!target.ok()) return refused(RejectReason::kInvalid, target.status());
  const DeploymentRef& loaded = target->deployment;
  if (loaded->unloaded) {
    return with_retry_hint(with_reason(absl::UnavailableError(absl::StrCat(
                                           "model ", quote_value(loaded->name), " was unloaded")),
                                       "LOAD_FAILED"),
                           loop->retry_hint());
  }
  TANDEM_RETURN_IF_ERROR(check_target(*target, &request));
  loaded->open->add(started->id);
  started->claims->deployment = std::shared_ptr<const void>(
      loaded.get(), [loaded, id = started->id, before = started->claims->deployment](const void*) {
        loaded->open->remove(id);
      });
  started->deployment = loaded;
  return absl::OkStatus();
}

absl::StatusOr<Quotas::OpenRequest> Engine::Impl::open_request(const std::string& client) {
  RejectReason reason{};
  absl::StatusOr<Quotas::OpenRequest> open = quotas.open(client, &reason);
  if (!open.ok()) return refused(reason, open.status());
  return open;
}

template <class Request>
absl::StatusOr<std::shared_ptr<Claims>> Engine::Impl::claim(const Request& request, int64_t bytes) {
  const std::string& client = request.client;
  bool part = false;
  if constexpr (requires { request.part_of_call; }) part = request.part_of_call;
  using Open = absl::StatusOr<Quotas::OpenRequest>;
  Open open = part ? Open(quotas.open_part(client)) : open_request(client);
  if (!open.ok()) return open.status();
  RejectReason reason = RejectReason::kQueueFull;
  absl::StatusOr<WaitingBudget::Share> share = budget.reserve(client, bytes, &reason);
  if (!share.ok()) return refused(reason, share.status());
  absl::StatusOr<MemoryAccount::Charge> charge = MemoryAccount::Charge();
  if (memory != nullptr) charge = memory->charge(client, request.host, bytes);
  if (!charge.ok()) return refused(RejectReason::kQueueBytes, charge.status());
  return std::make_shared<Claims>(*std::move(share), *std::move(charge), *std::move(open));
}

absl::Status Engine::Impl::hold(int64_t bytes, Claims* claims) {
  absl::Status held = claims->memory.try_resize(bytes);
  return held.ok() ? held : refused(RejectReason::kQueueBytes, std::move(held));
}

template <class Request>
absl::Status Engine::Impl::hold_prompt(const Request& request, Claims* claims) {
  return hold(kPromptFactor * bytes_of(request), claims);
}

absl::Status Engine::Impl::enter(Ingress::Arrival arrival, Claims* claims) {
  {
    const MutexLock lock(&mutex);
    ++live;
  }
  absl::Status status = ingress.enter(std::move(arrival));
  if (status.ok()) return status;
  claims->ended();
  request_ended();
  return refused(absl::IsUnavailable(status) ? RejectReason::kDraining : RejectReason::kQueueFull,
                 std::move(status));
}

template <class Request>
RequestId Engine::Impl::accept(Request request,
                               const std::function<void(const StartedRequest<Request>&)>& start,
                               const std::function<void(const absl::Status&)>& fail) {
  const RequestId id = next_id.fetch_add(1);
  const auto try_enter = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const DeploymentRef deployment, check(&request));
    Ingress::Arrival arrival;
    arrival.id = id;
    arrival.client = request.client;
    arrival.bytes = bytes_of(request);
    arrival.submitted = clock.now();
    arrival.deadline = request.deadline;
    if (deployment->unloaded) arrival.held = deployment->name;
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Claims> claims, claim(request, arrival.bytes));
    deployment->open->add(id);
    claims->deployment = std::shared_ptr<const void>(
        deployment.get(), [deployment, id](const void*) { deployment->open->remove(id); });
    arrival.start = [this, start, fail,
                     own = StartedRequest<Request>{id, std::move(request), deployment,
                                                   arrival.submitted,
                                                   claims}](const absl::Status& status) mutable {
      absl::Status verdict = status;
      if (verdict.ok() && own.deployment->unloaded) verdict = find_loaded(&own);
      if (verdict.ok()) return start(own);
      if (absl::IsResourceExhausted(verdict)) {
        metrics.rejected[static_cast<size_t>(RejectReason::kQueueTime)].add();
      }
      end_early(own.claims.get(), verdict, [&] { fail(verdict); });
    };
    TANDEM_RETURN_IF_ERROR(enter(std::move(arrival), claims.get()));
    if (deployment->unloaded) load_for_held(deployment);
    return absl::OkStatus();
  };
  const absl::Status status = try_enter();
  if (!status.ok()) {
    count_failure(status);
    fail(status);
  }
  return id;
}

RequestId Engine::submit(GenerateRequest request, const std::shared_ptr<Sink>& sink) {
  return impl_->accept<GenerateRequest>(
      std::move(request),
      [impl = impl_.get(), sink](const StartedRequest<GenerateRequest>& started) {
        impl->prepare(started, sink);
      },
      [sink](const absl::Status& status) { sink->failed(status); });
}

absl::StatusOr<std::shared_ptr<OpenCall>> Engine::open_call(absl::string_view model,
                                                            const std::string& client) {
  const auto open = [&]() -> absl::StatusOr<std::shared_ptr<OpenCall>> {
    TANDEM_RETURN_IF_ERROR(impl_->check_model(model).status());
    TANDEM_ASSIGN_OR_RETURN(Quotas::OpenRequest own, impl_->open_request(client));
    return std::make_shared<OpenCall>(std::move(own));
  };
  absl::StatusOr<std::shared_ptr<OpenCall>> call = open();
  if (!call.ok()) impl_->count_failure(call.status());
  return call;
}

RequestId Engine::score(ScoreRequest request,
                        const std::function<void(absl::StatusOr<ScoreResult>)>& done) {
  return impl_->accept<ScoreRequest>(
      std::move(request),
      [impl = impl_.get(), done](const StartedRequest<ScoreRequest>& started) {
        impl->prepare(started, done);
      },
      [done](const absl::Status& status) { done(status); });
}

RequestId Engine::embed(EmbedRequest request,
                        const std::function<void(absl::StatusOr<EmbedResult>)>& done) {
  return impl_->accept<EmbedRequest>(
      std::move(request),
      [impl = impl_.get(), done](const StartedRequest<EmbedRequest>& started) {
        impl->prepare(started, done);
      },
      [done](const absl::Status& status) { done(status); });
}

RequestId Engine::tokenize(TokenizeRequest request,
                           const std::function<void(absl::StatusOr<std::vector<Token>>)>& done) {
  return impl_->accept<TokenizeRequest>(
      std::move(request),
      [impl = impl_.get(), done](const StartedRequest<TokenizeRequest>& started) {
        Claims& claims = *started.claims;
        const absl::Status held = impl->hold_prompt(started.request, &claims);
        if (!held.ok()) return impl->end_early(&claims, held, [&] { done(held); });
        auto tokens = tandem::tokenize(*started.deployment, started.request.prompt,
                                       started.request.add_special_tokens);
        if (tokens.ok()) claims.open.charge(static_cast<int64_t>(tokens->size()));
        impl->end_early(&claims, tokens.status(), [&] { done(std::move(tokens)); });
      },
      [done](const absl::Status& status) { done(status); });
}

RequestId Engine::detokenize(DetokenizeRequest request,
                             const std::function<void(absl::StatusOr<std::string>)>& done) {
  return impl_->accept<DetokenizeRequest>(
      std::move(request),
      [impl = impl_.get(), done](const StartedRequest<DetokenizeRequest>& started) {
        Claims& claims = *started.claims;
        const Deployment& deployment = *started.deployment;
        const auto ids = static_cast<int64_t>(started.request.token_ids.size());
        claims.open.charge(ids);
        // The text, and one copy of it.
        const absl::Status held =
            impl->hold(bytes_of(started.request) + 2 * ids * deployment.longest_piece, &claims);
        if (!held.ok()) return impl->end_early(&claims, held, [&] { done(held); });
        auto text = tandem::detokenize(deployment, started.request.token_ids,
                                       started.request.skip_special_tokens);
        impl->end_early(&claims, text.status(), [&] { done(std::move(text)); });
      },
      [done](const absl::Status& status) { done(status); });
}

void Engine::cancel(RequestId id) {
  impl_->end_request(id, absl::CancelledError("cancelled by the client"));
}

void Engine::Impl::end_request(RequestId id, const absl::Status& status) {
  if (!ingress.cancel(id, status)) loop->stop(id, status);
}

// --- Tokenizing threads

void Engine::Impl::prepare(const StartedRequest<GenerateRequest>& started,
                           const std::shared_ptr<Sink>& sink) {
  const GenerateRequest& request = started.request;
  const Deployment& deployment = *started.deployment;
  const auto fail = [&](const absl::Status& status) {
    end_early(started.claims.get(), status, [&] { sink->failed(status); });
  };
  if (request.n < 1 || request.n > config.limits.max_choices) {
    return fail(
        refused(RejectReason::kInvalid,
                out_of_range("n", request.n, absl::StrCat("1 to ", config.limits.max_choices))));
  }
  if (const absl::Status held = hold_prompt(request, started.claims.get()); !held.ok()) {
    return fail(held);
  }
  absl::StatusOr<Resolved> resolved = resolve(deployment, request, fresh_seed());
  if (!resolved.ok()) return fail(refused(RejectReason::kInvalid, resolved.status()));

  SequenceSpec spec = std::move(resolved->spec);
  spec.lease = keep(started.deployment, std::move(spec.lease));
  StreamPlan plan;
  plan.started.request_id =
      request.request_id.empty() ? absl::StrCat("r", started.id) : request.request_id;
  plan.started.prompt_tokens = spec.prompt_tokens();
  plan.started.method = resolved->method;
  plan.started.contract = resolved->contract;
  plan.seed = spec.warp.seed;
  plan.logprobs = spec.logprobs;
  plan.tokenizer = resolved->tokenizer;
  plan.skip_special_tokens = request.skip_special_tokens;
  plan.context = std::move(resolved->context);
  plan.answer = std::move(resolved->answer);
  plan.stops = resolved->stops;
  plan.include_stop_sequence = request.stopping.include_stop_sequence;

  spec.submitted = started.submitted;
  if (request.stopping.time_limit)
    spec.time_limit = started.submitted + *request.stopping.time_limit;
  const auto n = static_cast<int>(request.n);
  const int64_t memory_bytes = bytes_of(request) + memory_of(spec, n);
  started.claims->waiting.resize(memory_of(spec, n));
  started.claims->memory.resize(memory_bytes);
  if (spec.trace) {
    const absl::Status held = hold(memory_bytes + n * PassTrace::kMostBytes, started.claims.get());
    if (!held.ok()) return fail(held);
  }
  started.claims->open.charge(spec.prompt_tokens());
  plan.claims = started.claims;
  const MethodEntry* const method = find_method(resolved->method);
  if (method != nullptr && method->looks_up) plan.token_bytes = NgramIndex::kTokenBytes;
  auto streams = request_streams(&text, std::move(plan), n, sink, [this] { request_ended(); });
  std::vector<SequenceSpec> choices(static_cast<size_t>(n), spec);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].id = i == 0 ? started.id : next_id.fetch_add(1);
    choices[i].warp.choice = static_cast<uint32_t>(i);
    choices[i].listener = std::move(streams[i]);
    if (i > 0 && resolved->constraint) {
      absl::StatusOr<std::shared_ptr<GrammarConstraint>> own = resolved->constraint->fork();
      if (!own.ok()) return fail(own.status());
      constrain(*std::move(own), &choices[i]);
    }
  }
  const absl::Status handed_over =
      ingress.hand_over(started.id, [&] { loop->submit(std::move(choices)); });
  if (!handed_over.ok()) fail(handed_over);
}

void Engine::Impl::prepare(const StartedRequest<ScoreRequest>& started,
                           const std::function<void(absl::StatusOr<ScoreResult>)>& done) {
  const ScoreRequest& request = started.request;
  const Deployment& deployment = *started.deployment;
  const auto fail = [&](const absl::Status& status) {
    end_early(started.claims.get(), status, [&] { done(status); });
  };
  if (const absl::Status held = hold_prompt(request, started.claims.get()); !held.ok()) {
    return fail(held);
  }
  absl::StatusOr<ResolvedScore> resolved = resolve(deployment, request);
  if (!resolved.ok()) return fail(refused(RejectReason::kInvalid, resolved.status()));

  SequenceSpec spec;
  spec.id = started.id;
  spec.prompt = resolved->tokens;
  spec.warp.vocab = deployment.vocab_size;
  CastRole role{Role::kLarge, deployment.large->id};
  if (resolved->adapter) {
    role.lora = resolved->adapter->id;
    spec.adapter_series = resolved->adapter->series.get();
    spec.lease = std::exchange(resolved->adapter, nullptr);
  }
  spec.lease = keep(started.deployment, std::move(spec.lease));
  spec.cast = make_cast({role});
  spec.priority = request.priority;
  spec.client = request.client;
  spec.salt = deployment.prefix_salt(request.client);
  spec.submitted = started.submitted;
  spec.deadline = request.deadline;
  started.claims->open.charge(static_cast<int64_t>(spec.prompt.size()));
  started.claims->waiting.resize(memory_of(spec, 2));  // the listener has a copy of the tokens
  // Each token has scores of the likeliest tokens, twice: as the loop and as the listener has them.
  const auto scores = static_cast<int64_t>(spec.prompt.size()) * (request.top_logprobs + 8) * 2 *
                      static_cast<int64_t>(sizeof(std::pair<Token, float>));
  if (const absl::Status held =
          hold(bytes_of(request) + memory_of(spec, 2) + scores, started.claims.get());
      !held.ok()) {
    return fail(held);
  }
  const auto listener = std::make_shared<ScoreListener>(&text, *std::move(resolved), started.claims,
                                                        done, [this] { request_ended(); });
  spec.listener = listener;
  const int top = static_cast<int>(request.top_logprobs);
  spec.method = [begin = listener->begin(), top, out = listener->scored()](Gen g) {
    return tandem::score(g, begin, top, out);
  };
  const absl::Status handed_over =
      ingress.hand_over(started.id, [&] { loop->submit(std::move(spec)); });
  if (!handed_over.ok()) fail(handed_over);
}

void Engine::Impl::prepare(const StartedRequest<EmbedRequest>& started,
                           const std::function<void(absl::StatusOr<EmbedResult>)>& done) {
  const EmbedRequest& request = started.request;
  const Deployment& deployment = *started.deployment;
  const auto fail = [&](const absl::Status& status) {
    end_early(started.claims.get(), status, [&] { done(status); });
  };
  if (const absl::Status held = hold_prompt(request, started.claims.get()); !held.ok()) {
    return fail(held);
  }
  absl::StatusOr<ResolvedEmbed> resolved = resolve(deployment, request);
  if (!resolved.ok()) return fail(refused(RejectReason::kInvalid, resolved.status()));

  SequenceSpec spec;
  spec.id = started.id;
  spec.prompt = resolved->tokens;
  spec.lease = started.deployment;
  spec.cast = make_cast({{Role::kLarge, deployment.large->id}});
  spec.prefix_cache = false;  // its rows are not kept, and the pooled ones cannot be adopted
  spec.priority = request.priority;
  spec.client = request.client;
  spec.submitted = started.submitted;
  spec.deadline = request.deadline;
  started.claims->open.charge(static_cast<int64_t>(spec.prompt.size()));
  started.claims->waiting.resize(memory_of(spec, 2));  // the listener has a copy of the tokens
  // The outputs of its rows, and the state.
  const auto outputs =
      static_cast<int64_t>(spec.prompt.size() * (sizeof(Out) + sizeof(Work::Output)));
  const ModelShape& shape = deployment.large->shape;
  int64_t state = 4 * shape.hidden_size;
  for (const DenseLayer& dense : resolved->settings->dense) state += 2 * dense.out;
  state *= static_cast<int64_t>(sizeof(double));
  if (const absl::Status held =
          hold(bytes_of(request) + memory_of(spec, 2) + outputs + state, started.claims.get());
      !held.ok()) {
    return fail(held);
  }
  const auto listener = std::make_shared<EmbedListener>(&text, *std::move(resolved), started.claims,
                                                        done, [this] { request_ended(); });
  spec.listener = listener;
  spec.method = [pooling = deployment.large->embedding.pooling,
                 see = shape.bidirectional ? See::kAll : See::kCausal,
                 out = listener->pooled()](Gen g) { return tandem::embed(g, pooling, see, out); };
  const absl::Status handed_over =
      ingress.hand_over(started.id, [&] { loop->submit(std::move(spec)); });
  if (!handed_over.ok()) fail(handed_over);
}

}  // namespace tandem
