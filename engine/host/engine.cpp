#include "engine/host/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/thread.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/embed.h"
#include "engine/host/engine_impl.h"
#include "engine/host/methods/declare.h"
#include "engine/host/requests/listeners.h"
#include "engine/host/requests/resolve.h"
#include "engine/host/statistics.h"

namespace tandem {

Engine::Impl::Impl(EngineConfig c, std::shared_ptr<MemoryAccount> account)
    : config(std::move(c)),
      memory(std::move(account)),
      budget(config.limits, &metrics),
      quotas(config.limits, &clock),
      text(std::max(1, config.text_threads), {}, "text"),
      ingress(std::max(1, config.tokenize_threads), config.limits, &clock, &text, &metrics) {}

absl::Status Engine::Impl::start() {
  TANDEM_ASSIGN_OR_RETURN(devices,
                          Devices::load(config, hidden_states_of(config), &clock, progress));
  const MutexLock lock(&changes);
  const std::vector<LoadedModel*> by_id = devices->models().all();
  std::vector<LoopModel> loop_models(by_id.size());
  for (const LoadedModel* m : by_id) loop_models[m->id.index()] = register_model(*m);
  for (const LoadedModel* m : by_id) {
    for (const LoadedModel* r : m->replicas) loop_models[r->id.index()].replica_of = m->id;
  }
  for (const ModelConfig& m : config.models) spare.push_back(lease(m.name));
  TANDEM_ASSIGN_OR_RETURN(std::vector<Deployment> made,
                          make_deployments(config, devices->models().by_name(), &metrics));
  DeploymentTable all;
  for (Deployment& d : made) {
    for (const std::string& notice : d.notices) {
      if (progress) progress(notice);
    }
    d.open = std::make_shared<OpenRequests>(idle_clock);
    d.counts->loads.add();
    all.push_back(publishable(std::move(d)));
  }
  std::erase_if(spare, [](const auto& model) { return model.use_count() > 1; });
  LoopOptions options;
  options.limits = config.limits;
  options.log_frees = true;  // fake devices check them
  loop = std::make_unique<Loop>(options, &clock, devices->backends(), loop_models, &metrics);
  {
    const MutexLock table_lock(&table_mutex);
    table = std::make_shared<const DeploymentTable>(std::move(all));
  }
  if (!config.statistics_file.empty()) read_statistics();
  loop_thread = start_thread("the scheduler", [this] { loop->run(); });
  if (!config.prefix_store.empty()) {
    prefixes = std::make_unique<PrefixStore>(config, &metrics);
    for (const LoadedModel* m : by_id) {
      prefixes_read.Update(prefixes->add(*m, progress, loop.get()));
    }
  }
  for (const LoadedModel* m : by_id) {
    if (!m->shape.encodes) TANDEM_RETURN_IF_ERROR(warm_up(*m));  // encoders run with their decoders
  }
  return absl::OkStatus();
}

// Runs a prefill and a decode, or an embedding, through the whole engine, so that pages are
// touched, buffers have grown and kernels are loaded.
absl::Status Engine::Impl::warm_up(const LoadedModel& model) {
  const auto listener = std::make_shared<WarmUp>();
  SequenceSpec spec;
  spec.id = next_id.fetch_add(1);
  const int64_t room = model.pool.pages * model.pool.page_rows;
  const auto rows = static_cast<size_t>(std::min<int64_t>(
      {room - 1, model.shape.max_positions - 1, config.limits.prefill_chunk_rows}));
  spec.prompt.assign(std::max<size_t>(1, rows), 0);
  std::vector<double> embedding;
  if (model.shape.embeds_only) {
    if (rows > static_cast<size_t>(config.limits.step_rows)) {  // its pass is never divided
      spec.prompt.resize(static_cast<size_t>(config.limits.step_rows));
    }
    const See see = model.shape.bidirectional ? See::kAll : See::kCausal;
    spec.method = [see, &embedding](Gen g) {
      return tandem::embed(g, Pooling::kMean, see, &embedding);
    };
  } else {
    spec.method = [](Gen g) { return autoregressive(g); };
  }
  spec.placed = true;  // on this instance
  Cast cast{.roles = {{Role::kLarge, model.id}}};
  if (model.encoder != nullptr) {
    spec.prompt.swap(spec.encoder_tokens);
    const auto most = static_cast<size_t>(std::min<int64_t>(
        model.encoder->pool.pages * model.encoder->pool.page_rows, config.limits.step_rows));
    spec.encoder_tokens.resize(std::min(spec.encoder_tokens.size(), most));
    spec.prompt = {model.start_token};
    cast.roles.push_back(encoder_role(model.encoder->id));
    cast.memories.push_back({.reader = 0, .encoder = 1});
  }
  spec.cast = std::make_shared<const Cast>(std::move(cast));
  spec.prefix_cache = false;
  spec.stops.max_new_tokens = static_cast<int>(std::min<int64_t>(2, room - 1));
  spec.submitted = clock.now();
  spec.listener = listener;
  loop->submit(std::move(spec));
  absl::Status status = listener->wait();
  if (status.ok()) return status;
  return annotate(
      status, absl::StrCat("warm-up of model ", model.config.name, " on ", model.config.device));
}

void Engine::Impl::read_statistics() {
  const auto saved = tandem::read_statistics(config.statistics_file);
  if (saved.ok()) {
    restore_statistics(*saved, config, devices->models().all(), *deployments(), loop.get());
  } else if (!absl::IsNotFound(saved.status())) {
    statistics_read = saved.status();
  }
}

Engine::Impl::~Impl() {
  stop();
  // While the loop and the devices exist.
  std::shared_ptr<const DeploymentTable> all;
  {
    const MutexLock lock(&table_mutex);
    all = std::exchange(table, nullptr);
  }
  for (const DeploymentRef& d : *all) d->adapters->close();
  const MutexLock lock(&changes);
  closing = true;
  spare.clear();
}

void Engine::Impl::stop() {
  if (!loop_thread.joinable()) return;
  stop_running();
  {
    MutexLock lock(&mutex);
    live_changed.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return live == 0; });
  }
  {
    const MutexLock lock(&changes);  // after loading and freeing that is under way
    closing = true;
  }
  while (loop->live() > 0) std::this_thread::yield();  // until their pages are released
  loop->quit();
  loop_thread.join();
}

void Engine::Impl::stop_running() {
  ingress.stop();
  loop->stop_all(shutting_down());
}

void Engine::Impl::request_ended() {
  report_lost_devices();
  const MutexLock lock(&mutex);
  --live;
  live_changed.notify_all();
}

// The loop marks a device as lost before it ends a request there, so no loss is missed.
void Engine::Impl::report_lost_devices() {
  for (size_t d = 0; d < config.devices.size(); ++d) {
    if (!lost(d)) continue;
    const MutexLock lock(&loss_mutex);
    if (loss_reported[d] || !on_loss) continue;
    loss_reported[d] = true;
    on_loss(config.devices[d].name());
  }
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { impl_->draining.store(true); }

absl::StatusOr<std::unique_ptr<Engine>> Engine::create(
    EngineConfig config, const std::function<void(absl::string_view)>& progress,
    std::shared_ptr<MemoryAccount> memory, PrefixListener* prefix_listener,
    const Clock* idle_clock) {
  auto impl = std::make_unique<Impl>(std::move(config), std::move(memory));
  impl->prefix_listener = prefix_listener;
  impl->progress = progress;
  if (idle_clock != nullptr) impl->idle_clock = idle_clock;
  TANDEM_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

void Engine::pause(RequestId id) { impl_->loop->pause(id); }
void Engine::resume(RequestId id) { impl_->loop->resume(id); }

std::string Engine::token_bytes(absl::string_view model, Token id) const {
  const auto target = impl_->find(model);
  if (!target.ok() || target->deployment->unloaded) return "";
  return target->deployment->large->tokenizer->token_bytes(id);
}

std::function<std::string(Token)> Engine::token_bytes(const GenerateRequest& request) const {
  const auto target = impl_->find(request.model, request.adapter);
  if (!target.ok()) return [](Token) { return std::string(); };
  const Deployment& d = *target->deployment;
  if (d.unloaded) {  // the answer comes when it is loaded
    GenerateRequest later = request;
    later.prompt = {};
    return [this, later = std::move(later)](Token id) {
      const auto now = impl_->find(later.model, later.adapter);
      return !now.ok() || now->deployment->unloaded ? "" : token_bytes(later)(id);
    };
  }
  const bool small = d.answers_in_small_tokens(request, target->adapter != nullptr);
  return [tokenizer = (small ? d.small : d.large)->tokenizer](Token id) {
    return tokenizer->token_bytes(id);
  };
}

std::vector<DeploymentInfo> Engine::deployments() const {
  std::vector<DeploymentInfo> infos;
  const auto all = impl_->deployments();
  for (const DeploymentRef& d : *all) infos.push_back(d->info());
  return infos;
}

absl::StatusOr<DeploymentInfo> Engine::deployment(absl::string_view model) const {
  TANDEM_ASSIGN_OR_RETURN(const Target target, impl_->find(model));
  return target.deployment->info();
}

std::string Engine::adapter(absl::string_view model, absl::string_view adapter) const {
  const auto target = impl_->find(model, adapter);
  return target.ok() && target->adapter ? target->adapter->name : "";
}

std::vector<DeviceInfo> Engine::devices() const {
  std::vector<DeviceInfo> infos;
  for (size_t d = 0; d < impl_->config.devices.size(); ++d) {
    infos.push_back({impl_->config.devices[d].name(), impl_->lost(d)});
  }
  return infos;
}

void Engine::on_device_lost(std::function<void(const std::string& device)> lost) {
  const MutexLock lock(&impl_->loss_mutex);
  impl_->on_loss = std::move(lost);
}

Vitals Engine::vitals() const {
  Vitals out;
  out.step = impl_->loop->in_one_step();
  for (size_t d = 0; d < impl_->config.devices.size(); ++d) {
    out.batches.emplace_back(impl_->config.devices[d].name(),
                             impl_->loop->at_one_batch(DeviceId(static_cast<int64_t>(d))));
  }
  return out;
}

const absl::Status& Engine::statistics_read() const { return impl_->statistics_read; }

absl::Status Engine::save_statistics() {
  impl_->draining.store(true);
  impl_->stop();
  const EngineConfig& config = impl_->config;
  if (config.statistics_file.empty()) return absl::OkStatus();
  return write_statistics(config.statistics_file,
                          collect_statistics(config, impl_->devices->models().all(),
                                             *impl_->deployments(), impl_->loop.get()));
}

const absl::Status& Engine::prefixes_read() const { return impl_->prefixes_read; }

absl::StatusOr<SavedPrefixes> Engine::save_prefixes() {
  if (impl_->prefixes == nullptr) return SavedPrefixes();
  return impl_->prefixes->save(impl_->loop.get());
}

void Engine::start_drain() { impl_->draining.store(true); }

int64_t Engine::live_requests() const {
  const MutexLock lock(&impl_->mutex);
  return impl_->live;
}

bool Engine::wait_until_idle(TimePoint deadline) {
  MutexLock lock(&impl_->mutex);
  return impl_->live_changed.wait_until(
      lock, deadline,
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex) { return impl_->live == 0; });
}

void Engine::shutdown(TimePoint deadline) {
  start_drain();
  if (wait_until_idle(deadline)) return;
  impl_->stop_running();
  MutexLock lock(&impl_->mutex);
  impl_->live_changed.wait(
      lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mutex) { return impl_->live == 0; });
}

const Metrics& Engine::metrics() const { return impl_->metrics; }

int Engine::max_priority(const std::string& client) const {
  return impl_->quotas.max_priority(client);
}

const std::map<std::string, ClientUse>& Engine::client_uses() const { return impl_->quotas.uses(); }

}  // namespace tandem
