#include "engine/host/engine.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/score.h"
#include "engine/host/deployment.h"
#include "engine/host/listeners.h"
#include "engine/host/models.h"
#include "engine/host/resolve.h"
#include "engine/host/stream.h"
#include "engine/host/text_pool.h"
#include "engine/sched/loop.h"

namespace tandem {
namespace {

using Progress = std::function<void(absl::string_view)>;

absl::Status shutting_down() {
  return with_reason(absl::UnavailableError("the server is shutting down"), "DRAINING");
}

}  // namespace

struct Engine::Impl {
  explicit Impl(EngineConfig c) : config(std::move(c)), text(std::max(1, config.text_threads)) {}
  ~Impl();

  absl::Status start(const Progress& progress);
  absl::Status warm_up(const LoadedModel& model);
  const Deployment* find(absl::string_view name) const;
  absl::Status unknown(absl::string_view name) const;

  // The request's way from submit() to the loop. enter() refuses when there is no room or none is
  // wanted any more; pass() when the request was cancelled on the way, or the engine is stopping.
  absl::Status enter(RequestId id);
  absl::Status pass(RequestId id, std::vector<SequenceSpec> choices);
  void leave(RequestId id);
  void stop_running();
  void one_gone();
  void refuse(RejectReason reason) { metrics.rejected[static_cast<size_t>(reason)].add(); }
  void prepare(RequestId id, const GenerateRequest& request, std::shared_ptr<Sink> sink,
               TimePoint submitted);
  void prepare(RequestId id, const ScoreRequest& request,
               const std::function<void(absl::StatusOr<ScoreResult>)>& done, TimePoint submitted);
  uint64_t fresh_seed();
  bool lost(DeviceId device) const { return loop->device_lost(device); }
  bool lost(size_t device) const { return lost(DeviceId(static_cast<int64_t>(device))); }
  void tell_of_lost_devices();
  DeploymentInfo describe(const Deployment& deployment) const;

  const EngineConfig config;
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<Devices> devices;
  std::vector<Deployment> deployments;
  std::unique_ptr<Loop> loop;
  std::thread loop_thread;

  std::atomic<RequestId> next_id{1};
  std::atomic<bool> draining{false};
  std::mutex mutex;                            // guards what follows
  std::unordered_map<RequestId, bool> on_way;  // not with the loop yet; true: cancelled
  bool stopping = false;                       // nothing goes to the loop any more
  int64_t live = 0;                            // accepted, and the sink's last call to come
  std::condition_variable fewer;
  std::mt19937_64 seeds{std::random_device{}()};

  std::mutex loss_mutex;  // guards what follows; held while it is called
  std::function<void(const std::string&)> on_loss;
  std::vector<bool> told = std::vector<bool>(config.devices.size());  // by device

  TextPool text;  // last: its threads use the rest
};

absl::Status Engine::Impl::start(const Progress& progress) {
  TANDEM_ASSIGN_OR_RETURN(devices, Devices::load(config, &clock, progress));
  std::vector<LoopModel> loop_models(devices->models().size());
  std::vector<const LoadedModel*> by_id(loop_models.size());
  for (const auto& [name, m] : devices->models()) by_id[m.id.index()] = &m;
  for (const LoadedModel* m : by_id) {
    ModelSeries& series = metrics.models.emplace_back();
    series.model = m->config.name;
    series.device = m->config.device;
    series.weight_bytes.set(static_cast<double>(m->shape.weight_bytes));
    series.kv_bytes.set(static_cast<double>(m->shape.page_bytes * m->pool.pages));
    loop_models[m->id.index()] = {m->id, m->device, &series, m->config.prefix_cache};
  }
  TANDEM_ASSIGN_OR_RETURN(deployments, make_deployments(config, devices->models(), &metrics));
  LoopOptions options;
  options.limits = config.limits;
  options.log_frees = true;  // cheap, and fake devices check them
  loop = std::make_unique<Loop>(options, &clock, devices->backends(), loop_models, &metrics);
  loop_thread = std::thread([this] { loop->run(); });
  for (const LoadedModel* m : by_id) TANDEM_RETURN_IF_ERROR(warm_up(*m));
  return absl::OkStatus();
}

// A prefill and a decode through the whole engine: pages are touched, buffers grow, kernels load.
absl::Status Engine::Impl::warm_up(const LoadedModel& model) {
  const auto listener = std::make_shared<WarmUp>();
  SequenceSpec spec;
  spec.id = next_id.fetch_add(1);
  const int64_t room = model.pool.pages * model.pool.page_rows;
  const auto rows = static_cast<size_t>(std::min<int64_t>(
      {room - 1, model.shape.max_positions - 1, config.limits.prefill_chunk_rows}));
  spec.prompt.assign(std::max<size_t>(1, rows), 0);
  spec.method = [](Gen g) { return autoregressive(g); };
  spec.roles = {{Role::kLarge, model.id, 0}};
  spec.prefix_cache = false;
  spec.stops.max_new_tokens = static_cast<int>(std::min<int64_t>(2, room - 1));
  spec.submitted = clock.now();
  spec.listener = listener;
  loop->submit(std::move(spec));
  const absl::Status status = listener->wait();
  if (!status.ok()) return annotate(status, absl::StrCat("warm-up of model ", model.config.name));
  return status;
}

Engine::Impl::~Impl() {
  if (!loop) return;
  stop_running();
  {
    std::unique_lock lock(mutex);
    fewer.wait(lock, [this] { return live == 0; });
  }
  while (loop->live() > 0) std::this_thread::yield();  // pages of the last ones go back
  loop->quit();
  loop_thread.join();
}

const Deployment* Engine::Impl::find(absl::string_view name) const {
  for (const Deployment& d : deployments) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

absl::Status Engine::Impl::unknown(absl::string_view name) const {
  const std::string known = absl::StrJoin(
      deployments, ", ",
      [](std::string* out, const Deployment& d) { absl::StrAppend(out, "\"", d.name, "\""); });
  return with_reason(absl::NotFoundError(absl::StrCat("model: \"", name, "\"; known: ", known)),
                     "MODEL_NOT_FOUND");
}

uint64_t Engine::Impl::fresh_seed() {
  const std::lock_guard lock(mutex);
  return seeds() >> 1;  // fits clients without unsigned integers
}

absl::Status Engine::Impl::enter(RequestId id) {
  if (draining.load()) {
    refuse(RejectReason::kDraining);
    return with_reason(absl::UnavailableError("the server is draining; try another one"),
                       "DRAINING");
  }
  const std::lock_guard lock(mutex);
  if (static_cast<int>(on_way.size()) >= config.limits.max_waiting) {
    refuse(RejectReason::kQueueFull);
    return with_retry_hint(
        with_reason(absl::ResourceExhaustedError(absl::StrCat(
                        "queue is full: ", on_way.size(),
                        " requests are being tokenized; allowed: ", config.limits.max_waiting,
                        " (limits.max_waiting); try again later")),
                    "QUEUE_FULL"),
        loop->retry_hint());
  }
  on_way.emplace(id, false);
  ++live;
  return absl::OkStatus();
}

absl::Status Engine::Impl::pass(RequestId id, std::vector<SequenceSpec> choices) {
  // Under the lock: a cancel that does not find the id here finds it with the loop.
  const std::lock_guard lock(mutex);
  const auto it = on_way.find(id);
  const bool cancelled = it->second;
  on_way.erase(it);
  if (cancelled) return absl::CancelledError("cancelled by the client");
  if (stopping) return shutting_down();
  loop->submit(std::move(choices));
  return absl::OkStatus();
}

void Engine::Impl::stop_running() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  loop->stop_all(shutting_down());
}

void Engine::Impl::leave(RequestId id) {
  const std::lock_guard lock(mutex);
  on_way.erase(id);
}

void Engine::Impl::one_gone() {
  tell_of_lost_devices();
  const std::lock_guard lock(mutex);
  --live;
  fewer.notify_all();
}

// The loop says that a device is lost before any request on it ends, so none is missed.
void Engine::Impl::tell_of_lost_devices() {
  for (size_t d = 0; d < told.size(); ++d) {
    if (!lost(d)) continue;
    const std::lock_guard lock(loss_mutex);
    if (told[d] || !on_loss) continue;
    told[d] = true;
    on_loss(config.devices[d].name());
  }
}

DeploymentInfo Engine::Impl::describe(const Deployment& deployment) const {
  DeploymentInfo info = deployment.info();
  info.models[0].device_lost = lost(deployment.large->device);
  if (deployment.small) info.models[1].device_lost = lost(deployment.small->device);
  return info;
}

void Engine::Impl::prepare(RequestId id, const GenerateRequest& request, std::shared_ptr<Sink> sink,
                           TimePoint submitted) {
  const auto fail = [&](const absl::Status& status) {
    sink->failed(status);
    one_gone();
  };
  const auto reject = [&](const absl::Status& status) {
    leave(id);
    refuse(RejectReason::kInvalid);
    fail(status);
  };
  const Deployment* deployment = find(request.model);
  if (!deployment) return reject(unknown(request.model));
  if (request.n < 1 || request.n > config.limits.max_choices) {
    return reject(out_of_range("n", request.n, absl::StrCat("1 to ", config.limits.max_choices)));
  }
  absl::StatusOr<Resolved> resolved = resolve(*deployment, request, fresh_seed());
  if (!resolved.ok()) return reject(resolved.status());

  SequenceSpec spec = std::move(resolved->spec);
  StreamPlan plan;
  plan.started.request_id = request.request_id.empty() ? absl::StrCat("r", id) : request.request_id;
  plan.started.prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  plan.started.method = resolved->method;
  plan.started.contract = resolved->contract;
  plan.seed = spec.warp.seed;
  plan.logprobs = spec.logprobs;
  plan.tokenizer = deployment->large->tokenizer;
  plan.skip_special_tokens = request.skip_special_tokens;
  const size_t context = std::min(spec.prompt.size(), kDecodeContext);
  plan.context.assign(spec.prompt.end() - static_cast<ptrdiff_t>(context), spec.prompt.end());
  plan.stop_sequences = request.stopping.stop_sequences;
  plan.include_stop_sequence = request.stopping.include_stop_sequence;

  spec.submitted = submitted;
  if (request.stopping.time_limit) spec.time_limit = submitted + *request.stopping.time_limit;
  const auto n = static_cast<int>(request.n);
  auto streams = request_streams(&text, std::move(plan), n, sink, [this] { one_gone(); });
  std::vector<SequenceSpec> choices(static_cast<size_t>(n), spec);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].id = i == 0 ? id : next_id.fetch_add(1);
    choices[i].warp.choice = static_cast<uint32_t>(i);
    choices[i].listener = std::move(streams[i]);
  }
  const absl::Status passed = pass(id, std::move(choices));
  if (!passed.ok()) fail(passed);
}

void Engine::Impl::prepare(RequestId id, const ScoreRequest& request,
                           const std::function<void(absl::StatusOr<ScoreResult>)>& done,
                           TimePoint submitted) {
  const auto reject = [&](const absl::Status& status) {
    leave(id);
    refuse(RejectReason::kInvalid);
    done(status);
    one_gone();
  };
  const Deployment* deployment = find(request.model);
  if (!deployment) return reject(unknown(request.model));
  absl::StatusOr<ResolvedScore> resolved = resolve(*deployment, request);
  if (!resolved.ok()) return reject(resolved.status());

  SequenceSpec spec;
  spec.id = id;
  spec.prompt = resolved->tokens;
  spec.warp.vocab = deployment->vocab_size;
  spec.roles = {{Role::kLarge, deployment->large->id, 0}};
  spec.priority = request.priority;
  spec.client = request.client;
  spec.salt = deployment->prefix_salt(request.client);
  spec.submitted = submitted;
  spec.deadline = request.deadline;
  const auto listener =
      std::make_shared<ScoreListener>(&text, *std::move(resolved), done, [this] { one_gone(); });
  spec.listener = listener;
  const int top = static_cast<int>(request.top_logprobs);
  spec.method = [begin = listener->begin(), top, out = listener->scored()](Gen g) {
    return tandem::score(g, begin, top, out);
  };
  const absl::Status passed = pass(id, {std::move(spec)});
  if (!passed.ok()) {
    done(passed);
    one_gone();
  }
}

// --- The public face
// ------------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { impl_->draining.store(true); }

absl::StatusOr<std::unique_ptr<Engine>> Engine::create(EngineConfig config, Progress progress) {
  auto impl = std::make_unique<Impl>(std::move(config));
  TANDEM_RETURN_IF_ERROR(impl->start(progress));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

RequestId Engine::submit(GenerateRequest request, std::shared_ptr<Sink> sink) {
  const RequestId id = impl_->next_id.fetch_add(1);
  const absl::Status entered = impl_->enter(id);
  impl_->text.post([impl = impl_.get(), id, entered, request = std::move(request),
                    sink = std::move(sink), submitted = impl_->clock.now()] {
    if (entered.ok()) {
      impl->prepare(id, request, sink, submitted);
    } else {
      sink->failed(entered);
    }
  });
  return id;
}

RequestId Engine::score(ScoreRequest request,
                        std::function<void(absl::StatusOr<ScoreResult>)> done) {
  const RequestId id = impl_->next_id.fetch_add(1);
  const absl::Status entered = impl_->enter(id);
  impl_->text.post([impl = impl_.get(), id, entered, request = std::move(request),
                    done = std::move(done), submitted = impl_->clock.now()] {
    if (entered.ok()) {
      impl->prepare(id, request, done, submitted);
    } else {
      done(entered);
    }
  });
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(impl_->mutex);
    const auto it = impl_->on_way.find(id);
    if (it != impl_->on_way.end()) {
      it->second = true;
      return;
    }
  }
  impl_->loop->stop(id, absl::CancelledError("cancelled by the client"));
}

void Engine::pause(RequestId id) { impl_->loop->pause(id); }
void Engine::resume(RequestId id) { impl_->loop->resume(id); }

absl::StatusOr<std::vector<Token>> Engine::tokenize(absl::string_view model, const Prompt& prompt,
                                                    bool add_special_tokens) const {
  const Deployment* deployment = impl_->find(model);
  if (!deployment) return impl_->unknown(model);
  return tandem::tokenize(*deployment, prompt, add_special_tokens);
}

absl::StatusOr<std::string> Engine::detokenize(absl::string_view model,
                                               absl::Span<const int64_t> ids,
                                               bool skip_special_tokens) const {
  const Deployment* deployment = impl_->find(model);
  if (!deployment) return impl_->unknown(model);
  std::vector<Token> tokens;
  const Tokenizer& tokenizer = *deployment->large->tokenizer;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= tokenizer.vocab_size()) {
      return out_of_range(absl::StrCat("token_ids[", i, "]"), ids[i],
                          absl::StrCat("0 to ", tokenizer.vocab_size() - 1));
    }
    tokens.push_back(static_cast<Token>(ids[i]));
  }
  return tokenizer.decode(tokens, skip_special_tokens);
}

std::string Engine::token_bytes(absl::string_view model, Token id) const {
  const Deployment* deployment = impl_->find(model);
  return deployment ? deployment->large->tokenizer->token_bytes(id) : "";
}

std::vector<DeploymentInfo> Engine::deployments() const {
  std::vector<DeploymentInfo> infos;
  for (const Deployment& d : impl_->deployments) infos.push_back(impl_->describe(d));
  return infos;
}

absl::StatusOr<DeploymentInfo> Engine::deployment(absl::string_view name) const {
  const Deployment* deployment = impl_->find(name);
  if (!deployment) return impl_->unknown(name);
  return impl_->describe(*deployment);
}

std::vector<DeviceInfo> Engine::devices() const {
  std::vector<DeviceInfo> infos;
  for (size_t d = 0; d < impl_->config.devices.size(); ++d) {
    infos.push_back({impl_->config.devices[d].name(), impl_->lost(d)});
  }
  return infos;
}

void Engine::on_device_lost(std::function<void(const std::string& device)> lost) {
  const std::lock_guard lock(impl_->loss_mutex);
  impl_->on_loss = std::move(lost);
}

void Engine::start_drain() { impl_->draining.store(true); }

int64_t Engine::live_requests() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->live;
}

void Engine::shutdown(TimePoint deadline) {
  start_drain();
  std::unique_lock lock(impl_->mutex);
  const auto none = [this] { return impl_->live == 0; };
  if (impl_->fewer.wait_until(lock, deadline, none)) return;
  lock.unlock();
  impl_->stop_running();
  lock.lock();
  impl_->fewer.wait(lock, none);
}

const Metrics& Engine::metrics() const { return impl_->metrics; }

}  // namespace tandem
