#include "engine/backend/torch/device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/caught.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/device_impl.h"
#include "engine/backend/torch/open_queue.h"
#include "engine/backend/torch/step_graphs.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// The target is the process's: devices with different targets cannot read each other's matrices.
absl::Status set_cpu_target(const DeviceConfig& config, TorchShared& shared) {
  const std::string target = shared.agree_on_cpu_target(config.cpu_target);
  if (target != config.cpu_target) {
    const auto text = [](const std::string& t) { return t.empty() ? "unset" : t; };
    return out_of_range(absl::StrCat(config.name(), ".cpu_target"), text(config.cpu_target),
                        absl::StrCat(text(target), ", as on other devices"));
  }
  if (target.empty()) return absl::OkStatus();
  return annotate(cpu::force_target(target), "cpu_target");
}

}  // namespace

int team_size(const DeviceConfig& config, const Platform& platform) {
  if (config.threads > 0) return config.threads;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return platform.default_threads(cores);
}

TorchDevice::Impl::Impl(const DeviceConfig& c, const Platform& p, std::shared_ptr<TorchShared> s,
                        OpenedQueue opened)
    : config(c),
      platform(p),
      device(p.device(c.index)),
      shared(std::move(s)),
      queue(opened.queue == nullptr ? nullptr
                                    : std::make_unique<DeviceQueue>(std::move(opened.queue))),
      answers(queue == nullptr || !c.graphs ? nullptr
                                            : std::make_unique<AnswerCache>(*queue->queue, device)),
      peers(std::move(opened.peers)),
      runner(c.name(), queue.get(), *shared, models, [this](const std::function<void()>& loop) {
        const c10::InferenceMode inference;
        cpu::set_team_size(team_size(config, platform), config.pin_threads ? config.first_cpu : -1);
        loop();
      }) {}

int64_t TorchDevice::Impl::scratch_pages(const DeviceModel& loaded) const {
  const bool replays =
      queue != nullptr && config.graphs && StepGraphs::supports(*loaded.model, loaded.shape);
  return replays ? StepGraphs::scratch_pages(loaded.size.page_rows) : 0;
}

TorchDevice::TorchDevice(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TorchDevice::~TorchDevice() {
  impl_->models.for_each(
      [this](ModelId id, const DeviceModel&) { impl_->shared->remove_pool(id); });
}

absl::StatusOr<std::unique_ptr<TorchDevice>> TorchDevice::create(
    const DeviceConfig& config, std::shared_ptr<TorchShared> shared) {
  if (config.threads < 0) return out_of_range("threads", config.threads, "0 or more");
  TANDEM_RETURN_IF_ERROR(set_cpu_target(config, *shared));
  try {
    TANDEM_ASSIGN_OR_RETURN(const Platform* platform, find_platform(config));
    TANDEM_ASSIGN_OR_RETURN(OpenedQueue opened, open_queue(config, *shared));
    return std::unique_ptr<TorchDevice>(new TorchDevice(
        std::make_unique<Impl>(config, *platform, std::move(shared), std::move(opened))));
  } catch (...) {
    return caught(config.name());
  }
}

// A queue belongs to the device queue's thread.
absl::Status TorchDevice::allocate_pools(ModelId model, const PoolSize& size) {
  if (impl_->queue == nullptr) return impl_->allocate_pools(model, size);
  absl::Status status;
  impl_->runner.run([&] { status = impl_->allocate_pools(model, size); });
  return status;
}

void TorchDevice::unload(ModelId model) {
  impl_->shared->remove_pool(model);
  if (impl_->queue == nullptr) return impl_->models.erase(model);
  impl_->runner.run([&] { impl_->models.erase(model); });
}

absl::Status TorchDevice::Impl::allocate_pools(ModelId model, const PoolSize& size) try {
  DeviceModel* const known = models.find(model);
  if (known == nullptr) return absl::InternalError("allocate_pools before load");
  DeviceModel& loaded = *known;
  if (size.page_rows != loaded.size.page_rows) {
    return out_of_range("page_rows", size.page_rows, absl::StrCat(loaded.size.page_rows));
  }
  const c10::InferenceMode inference;
  const auto& adapters = loaded.extras.adapters;
  std::optional<int64_t> scratch;
  int64_t end = first_prompt_page(loaded.shape, size, adapters.size());
  if (const int64_t pages = scratch_pages(loaded); pages > 0) {
    scratch = std::exchange(end, end + pages);
  }
  loaded.pool = std::make_unique<KvPool>(loaded.model->geometry(), size, device, end - size.pages,
                                         queue.get());
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (!adapters[i].prompt_keys.defined()) continue;
    loaded.pool->fill(first_prompt_page(loaded.shape, size, i), adapters[i].prompt_keys,
                      adapters[i].prompt_values);
  }
  if (queue != nullptr) queue->finish();
  loaded.executor = std::make_unique<Executor>(
      *loaded.model, loaded.shape, loaded.extras, *loaded.pool, shared->values(),
      [all = shared.get()](ModelId id) { return all->pool(id); }, answers.get(), scratch);
  loaded.size = size;
  shared->add_pool(model, loaded.pool.get());
  return absl::OkStatus();
} catch (...) {
  return caught("pools");
}

absl::StatusOr<int64_t> TorchDevice::pack_weights(int64_t most) try {
  const c10::InferenceMode inference;
  const c10::DeviceGuard guard(impl_->device);
  int64_t taken = 0;
  impl_->models.for_each([&](ModelId, DeviceModel& loaded) {
    const auto weights = std::exchange(loaded.unpacked, nullptr);
    const int64_t bytes = weights == nullptr ? 0 : weights->packed_bytes();
    if (bytes == 0 || bytes > most - taken) return;
    weights->pack();
    loaded.packed_bytes = bytes;
    taken += bytes;
  });
  impl_->platform.synchronize(impl_->config.index);
  return taken;
} catch (...) {
  return caught("packed_products");
}

int64_t TorchDevice::scratch_bytes(ModelId model) const {
  const DeviceModel& loaded = impl_->models.at(model);
  return impl_->scratch_pages(loaded) * loaded.shape.page_bytes +
         impl_->platform.prompt_bytes(loaded.model->geometry(), loaded.shape.max_positions);
}

int64_t TorchDevice::free_bytes() const { return impl_->platform.free_bytes(impl_->config.index); }

const ModelShape& TorchDevice::shape(ModelId model) const { return impl_->models.at(model).shape; }

const PoolSize& TorchDevice::pool(ModelId model) const { return impl_->models.at(model).size; }

GraphCounts TorchDevice::graph_counts(ModelId model) const {
  return impl_->models.at(model).executor->graph_counts();
}

void TorchDevice::launch(const Batch& batch, Done done) {
  impl_->runner.launch(batch, std::move(done));
}

}  // namespace tandem
