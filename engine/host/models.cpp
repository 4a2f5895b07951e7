#include "engine/host/models.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/backend/fake/fake_backend.h"
#include "engine/backend/fake/timer.h"
#include "engine/base/status.h"
#include "engine/host/config.h"
#include "engine/host/methods/registry.h"
#ifdef TANDEM_WITH_TORCH
#include "engine/backend/torch/device.h"
#include "engine/backend/torch/memory.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/tokenizer.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "engine/backend/torch/weights/hf/generation_config.h"
#endif

namespace tandem {
namespace {

// For the slots of a device's fake models where nobody says how much.
constexpr int64_t kFakeBudget = int64_t{256} << 20;

// Frontier pages a model gets for each of its KV pages: rows seldom stop between two layers.
constexpr int64_t kKvPagesPerFrontierPage = 8;

// What methods of the deployments want of a model's hidden rows.
struct HiddenRows {
  bool top = false;      // those that have done all layers stay for deeper models
  bool encodes = false;  // no row stops between two layers
  bool feeds = false;    // those of a prompt are fed to another model
};

HiddenRows wanted_of(const EngineConfig& config, const std::string& model) {
  HiddenRows wanted;
  for (const DeploymentConfig& d : config.deployments) {
    for (const MethodEntry* method : all_methods()) {
      const MethodNeeds needs = method->with(d, {})->needs(d);
      for (const ModelInRole& role : needs.models) {
        if (role.model == model) wanted.top |= role.retains_top_hidden;
        if (needs.lacking || !role.fed_by) continue;
        wanted.feeds |= std::ranges::any_of(needs.models, [&](const ModelInRole& source) {
          return source.role == *role.fed_by && source.model == model;
        });
      }
    }
  }
  return wanted;
}

// Where hidden rows are wanted, there is room for one of each row of the KV pages: all may have
// stopped at an inner layer, or lie there after the last one. Those that are fed to another model
// lie in places of their own.
PoolSize pool_size(int page_rows, int64_t pages, const HiddenRows& wanted) {
  PoolSize size;
  size.page_rows = page_rows;
  size.pages = pages;
  const bool all = wanted.top || (wanted.feeds && !wanted.encodes);
  size.frontier_pages = all ? pages : std::max<int64_t>(4, pages / kKvPagesPerFrontierPage);
  size.retains_top_hidden = wanted.top;
  size.values = wanted.feeds ? pages * page_rows : 0;
  return size;
}

// Of a KV page, and of what there is of hidden rows for it.
[[maybe_unused]] int64_t bytes_of_page(const ModelShape& shape, const HiddenRows& wanted) {
  const int64_t rows = shape.frontier_page_bytes;
  if (!wanted.top && !wanted.feeds) return shape.page_bytes + rows / kKvPagesPerFrontierPage;
  return shape.page_bytes + (wanted.feeds ? 2 : 1) * rows;
}

// The devices with the teams that they get: CPU devices have teams of their own, which together
// should not be more than the machine has where the configuration does not say how many.
std::vector<DeviceConfig> with_teams(const EngineConfig& config) {
  const auto on_cpu = [](const DeviceConfig& d) { return d.kind == DeviceKind::kCpu; };
  const auto cpus = static_cast<int>(std::ranges::count_if(config.devices, on_cpu));
  const int share =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, cpus));
  int taken = 0;
  std::vector<DeviceConfig> devices = config.devices;
  for (DeviceConfig& d : devices) {
    if (!on_cpu(d)) continue;
    if (d.threads == 0) d.threads = share;
    d.first_cpu = std::exchange(taken, taken + d.threads);
  }
  return devices;
}

// Of a model's layers, those on the device. All where it has no shards.
[[maybe_unused]] std::pair<int, int> layers_on(const ModelConfig& model,
                                               const std::string& device) {
  int here = model.shards.empty() ? 1 : 0, all = here;
  for (const ShardConfig& shard : model.shards) {
    all += shard.layers;
    if (shard.device == device) here += shard.layers;
  }
  return {here, all};
}

#ifdef TANDEM_WITH_TORCH
// Transformers does not ban what ends a text, whatever the file says.
sampling::Params params_of(const GenerationDefaults& defaults, const std::vector<Token>& eos) {
  sampling::Params params;
  params.temperature = defaults.temperature;
  params.top_k = defaults.top_k;
  params.top_p = defaults.top_p;
  params.min_p = defaults.min_p;
  params.typical_p = defaults.typical_p;
  params.repetition_penalty = defaults.repetition_penalty;
  for (const Token id : defaults.bad_token_ids) {
    if (std::find(eos.begin(), eos.end(), id) == eos.end()) params.bad_token_ids.push_back(id);
  }
  return params;
}
#endif

#ifdef TANDEM_WITH_TORCH
// Tokenizer and chat template.
absl::Status load_text(const std::string& path, LoadedModel* model) {
  if (!is_gguf(path)) {
    TANDEM_ASSIGN_OR_RETURN(model->tokenizer, Tokenizer::load(path));
    TANDEM_ASSIGN_OR_RETURN(model->chat, ChatTemplate::load(path));
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::open(path));
  TANDEM_ASSIGN_OR_RETURN(const GgufTokenizer texts, gguf_tokenizer(gguf.content, path));
  TANDEM_ASSIGN_OR_RETURN(
      model->tokenizer, Tokenizer::parse(path, texts.tokenizer_json, texts.tokenizer_config_json));
  TANDEM_ASSIGN_OR_RETURN(model->chat, ChatTemplate::parse(path, texts.tokenizer_config_json));
  return absl::OkStatus();
}
#endif

#ifdef TANDEM_WITH_TORCH
// What its directory says about text and generation.
absl::Status load_small_files(const DecoderConfig& hf, LoadedModel* m,
                              const std::function<void(absl::string_view)>& progress) {
  TANDEM_RETURN_IF_ERROR(load_text(m->config.path, m));
  TANDEM_ASSIGN_OR_RETURN(const GenerationDefaults defaults,
                          load_generation_config(m->config.path));
  m->default_max_new_tokens = defaults.max_new_tokens;
  m->default_min_new_tokens = defaults.min_new_tokens;
  m->eos = defaults.eos_token_ids.empty() ? hf.eos_token_ids : defaults.eos_token_ids;
  m->defaults = params_of(defaults, m->eos);
  if (!progress) return absl::OkStatus();
  for (const std::string& note : defaults.not_applied) {
    progress(absl::StrCat(m->config.name, ": generation_config.json: ", note, " is not applied"));
  }
  return absl::OkStatus();
}
#endif

class LoadedDevices final : public Devices {
 public:
  explicit LoadedDevices(const Clock* clock) : clock_(clock) {}

  absl::Status load(const EngineConfig& config,
                    const std::function<void(absl::string_view)>& progress);

  std::vector<Backend*> backends() const override {
    std::vector<Backend*> all;
    for (const auto& b : backends_) all.push_back(b.get());
    return all;
  }
  const std::map<std::string, LoadedModel>& models() const override { return models_; }
  std::vector<const LoadedModel*> all() const override { return {all_.begin(), all_.end()}; }

 private:
  LoadedModel* add(LoadedModel* model);  // gives it its id
  void add_replicas(LoadedModel* first);
  void join_encoders();
  absl::Status load_fakes(const EngineConfig& config, const DeviceConfig& device,
                          const std::vector<LoadedModel*>& models,
                          const std::function<void(absl::string_view)>& progress);
#ifdef TANDEM_WITH_TORCH
  absl::Status load_real(const EngineConfig& config, const DeviceConfig& device,
                         const std::vector<LoadedModel*>& models,
                         const std::function<void(absl::string_view)>& progress);
  // Of weights on GPUs, where the configuration does not say whether. Last: whatever else has to
  // fit is there.
  absl::Status pack_weights(const std::function<void(absl::string_view)>& progress);
  std::vector<DeviceConfig> shard_devices(const ModelConfig& model) const;
  // Of a model that is loaded, as one of its own beside it.
  LoadedModel* add_encoder(LoadedModel* decoder, Token start_token);
  std::shared_ptr<TorchShared> torch_ = std::make_shared<TorchShared>();
  std::vector<std::pair<DeviceConfig, TorchDevice*>> may_pack_;
#endif

  const Clock* const clock_;
  std::vector<DeviceConfig> devices_;  // with their teams
  ValueStore fake_values_;
  FakeMemory fake_memory_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::unique_ptr<ThreadTimer> fake_timer_;  // destroyed first: it calls what is due
  std::map<std::string, LoadedModel> models_;
  std::deque<LoadedModel> further_;  // replicas and encoders
  std::vector<LoadedModel*> all_;    // by id
};

LoadedModel* LoadedDevices::add(LoadedModel* model) {
  model->id = ModelId(static_cast<int64_t>(all_.size()));
  all_.push_back(model);
  return model;
}

void LoadedDevices::add_replicas(LoadedModel* first) {
  for (const std::string& device : first->config.replicas) {
    LoadedModel* const replica = add(&further_.emplace_back());
    replica->config = first->config;
    replica->config.device = device;
    replica->config.replicas.clear();
    replica->is_replica = true;
    first->replicas.push_back(replica);
  }
}

// A model's replicas have encoders of their own, which are its encoder's replicas.
void LoadedDevices::join_encoders() {
  for (auto& [name, first] : models_) {
    if (first.encoder == nullptr) continue;
    for (const LoadedModel* replica : first.replicas) {
      all_[first.encoder->id.index()]->replicas.push_back(replica->encoder);
    }
  }
}

absl::Status LoadedDevices::load(const EngineConfig& config,
                                 const std::function<void(absl::string_view)>& progress) {
  for (const ModelConfig& m : config.models) add(&models_[m.name])->config = m;
  for (const ModelConfig& m : config.models) add_replicas(&models_.at(m.name));
  const size_t configured = all_.size();
  devices_ = with_teams(config);
  for (size_t d = 0; d < config.devices.size(); ++d) {
    const DeviceConfig& device = config.devices[d];
    std::vector<LoadedModel*> here;
    for (size_t id = 0; id < configured; ++id) {
      if (all_[id]->config.device != device.name()) continue;
      here.push_back(all_[id]);
      here.back()->device = DeviceId(static_cast<int64_t>(d));
    }
    const auto fakes = std::count_if(
        here.begin(), here.end(), [](const LoadedModel* m) { return m->config.fake.has_value(); });
    const bool has_shards = std::ranges::any_of(config.models, [&](const ModelConfig& m) {
      return std::ranges::find(m.shards, device.name(), &ShardConfig::device) != m.shards.end();
    });
    if (fakes > 0 && (has_shards || static_cast<size_t>(fakes) < here.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device ", device.name(), ": has models with weights and fake ones; allowed: one kind"));
    }
    if (fakes > 0) {
      TANDEM_RETURN_IF_ERROR(load_fakes(config, device, here, progress));
      continue;
    }
#ifdef TANDEM_WITH_TORCH
    TANDEM_RETURN_IF_ERROR(load_real(config, devices_[d], here, progress));
#else
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", device.name(), ": this build has no LibTorch; allowed: fake models"));
#endif
  }
  join_encoders();
#ifdef TANDEM_WITH_TORCH
  TANDEM_RETURN_IF_ERROR(pack_weights(progress));
#endif
  return absl::OkStatus();
}

absl::Status LoadedDevices::load_fakes(const EngineConfig& config, const DeviceConfig& device,
                                       const std::vector<LoadedModel*>& models,
                                       const std::function<void(absl::string_view)>& progress) {
  if (!fake_timer_) fake_timer_ = std::make_unique<ThreadTimer>();
  auto backend =
      std::make_unique<FakeBackend>(&fake_memory_, &fake_values_, clock_, fake_timer_.get());
  std::vector<PoolRequest> requests;
  for (const LoadedModel* m : models) {
    requests.push_back({m->config.name, FakeBackend::page_bytes(m->config.page_rows),
                        m->config.page_rows, m->config.fake->max_positions, m->config.kv_pages});
  }
  const int64_t budget = device.memory_bytes > 0 ? device.memory_bytes : kFakeBudget;
  absl::StatusOr<std::vector<int64_t>> pages =
      divide_pages(requests, budget, config.limits.max_running);
  if (!pages.ok()) return annotate(pages.status(), absl::StrCat("device ", device.name()));
  std::vector<std::function<bool()>> lost;
  for (size_t i = 0; i < models.size(); ++i) {
    LoadedModel* m = models[i];
    const FakeModelConfig& fake = *m->config.fake;
    backend->add_model(
        m->id, m->config.name, fake,
        pool_size(m->config.page_rows, (*pages)[i], wanted_of(config, m->config.name)));
    if (!fake.trace_file.empty()) {
      TANDEM_ASSIGN_OR_RETURN(auto trace, BatchTrace::open(fake.trace_file));
      backend->set_trace(m->id, std::move(trace));
    }
    if (fake.lost) {
      lost.emplace_back([is_lost = fake.lost, on = device.name()] { return is_lost(on); });
    }
    m->shape = backend->shape(m->id);
    m->pool = backend->pool(m->id);
    m->tokenizer = Tokenizer::bytes();
    if (fake.vocab_size > 256) m->eos = {256};
    if (progress) {
      progress(absl::StrCat(m->config.name, ": fake model on ", device.name(), ", ",
                            fake.vocab_size, " tokens, ", (*pages)[i], " pages"));
    }
  }
  if (!lost.empty()) {
    backend->set_faults([lost](const Batch&) {
      Fault fault;
      for (const auto& is_lost : lost) {
        if (is_lost()) fault.status = absl::UnavailableError("the device is lost");
      }
      return fault;
    });
  }
  backends_.push_back(std::move(backend));
  return absl::OkStatus();
}

#ifdef TANDEM_WITH_TORCH
std::vector<DeviceConfig> LoadedDevices::shard_devices(const ModelConfig& model) const {
  std::vector<DeviceConfig> devices;
  for (const ShardConfig& shard : model.shards) {
    devices.push_back(*std::ranges::find(devices_, shard.device, &DeviceConfig::name));
  }
  return devices;
}

LoadedModel* LoadedDevices::add_encoder(LoadedModel* decoder, Token start_token) {
  LoadedModel& encoder = *add(&further_.emplace_back());
  encoder.device = decoder->device;
  encoder.config = decoder->config;
  encoder.config.name = absl::StrCat(decoder->config.name, ":encoder");
  decoder->encoder = &encoder;
  decoder->start_token = start_token;
  return &encoder;
}

absl::Status LoadedDevices::load_real(const EngineConfig& config, const DeviceConfig& device,
                                      const std::vector<LoadedModel*>& models,
                                      const std::function<void(absl::string_view)>& progress) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TorchDevice> backend,
                          TorchDevice::create(device, torch_));
  std::vector<PoolRequest> requests;
  std::vector<LoadedModel*> with_encoders;  // each behind its decoder
  std::vector<HiddenRows> wanted;           // of each of these
  for (LoadedModel* m : models) {
    with_encoders.push_back(m);
    const std::string& path = m->config.path;
    // The small files first: what is wrong in them is said before gigabytes are read.
    TANDEM_ASSIGN_OR_RETURN(const DecoderConfig hf, load_hf_config(path));
    if (!m->is_replica) TANDEM_RETURN_IF_ERROR(load_small_files(hf, m, progress));
    TANDEM_RETURN_IF_ERROR(backend->load(m->id, m->config, progress, shard_devices(m->config)));
    const ModelShape& shape = backend->shape(m->id);
    for (const int64_t id : m->defaults.bad_token_ids) {
      if (id < shape.vocab_size) continue;
      return out_of_range(absl::StrCat(path, "/generation_config.json: bad_words_ids"), id,
                          absl::StrCat("0 to ", shape.vocab_size - 1));
    }
    HiddenRows hidden = wanted_of(config, m->config.name);
    // Where there is an encoder, it is that whose rows are read.
    const HiddenRows encoded{.encodes = true, .feeds = shape.reads_memory && hidden.feeds};
    if (shape.reads_memory) hidden.feeds = false;
    const auto [layers, all] = layers_on(m->config, device.name());
    const int64_t elsewhere = shape.page_bytes * (all - layers) / all;
    requests.push_back({m->config.name, bytes_of_page(shape, hidden) - elsewhere,
                        m->config.page_rows, shape.max_positions, m->config.kv_pages,
                        backend->scratch_bytes(m->id)});
    wanted.push_back(hidden);
    if (shape.reads_memory) {
      wanted.push_back(encoded);
      LoadedModel* const encoder = add_encoder(m, hf.start_token);
      TANDEM_RETURN_IF_ERROR(backend->load_encoder(encoder->id, m->id));
      const ModelShape& half = backend->shape(encoder->id);
      requests.push_back({encoder->config.name, bytes_of_page(half, encoded),
                          encoder->config.page_rows, half.max_positions, encoder->config.kv_pages});
      with_encoders.push_back(encoder);
    }
  }
  for (const LoadedModel* m : all_) {  // layers of models whose device queue is another device's
    const auto [layers, all] = layers_on(m->config, device.name());
    if (m->config.device == device.name() || m->config.shards.empty() || layers == 0) continue;
    requests.push_back({m->config.name, m->shape.page_bytes * layers / all, m->config.page_rows,
                        m->shape.max_positions, m->pool.pages});
  }
  // Half of what is free: the rest is for buffers, and for what else runs on the machine.
  const int64_t budget = device.memory_bytes > 0 ? device.memory_bytes : backend->free_bytes() / 2;
  absl::StatusOr<std::vector<int64_t>> pages =
      divide_pages(requests, budget, config.limits.max_running);
  if (!pages.ok()) return annotate(pages.status(), absl::StrCat("device ", device.name()));
  for (size_t i = 0; i < with_encoders.size(); ++i) {
    LoadedModel* m = with_encoders[i];
    m->pool = pool_size(m->config.page_rows, (*pages)[i], wanted[i]);
    const absl::Status allocated = backend->allocate_pools(m->id, m->pool);
    if (!allocated.ok()) return annotate(allocated, absl::StrCat("model ", m->config.name));
    m->shape = backend->shape(m->id);
    const int64_t rows = m->pool.pages * m->pool.page_rows;
    if (progress && rows < m->shape.max_positions) {
      progress(absl::StrCat(m->config.name, ": its KV pages hold ", rows, " rows, of a context of ",
                            m->shape.max_positions, " (memory_bytes of ", device.name(), ")"));
    }
  }
  if (device.kind == DeviceKind::kCuda && !device.packed_products.has_value()) {
    may_pack_.emplace_back(device, backend.get());
  }
  backends_.push_back(std::move(backend));
  return absl::OkStatus();
}

absl::Status LoadedDevices::pack_weights(const std::function<void(absl::string_view)>& progress) {
  std::vector<PackableDevice> device_queues;
  for (const auto& entry : may_pack_) {
    TorchDevice* const backend = entry.second;
    PackableDevice& device_queue = device_queues.emplace_back();
    device_queue.gpu = entry.first.index;
    device_queue.free_bytes = [backend] { return backend->free_bytes(); };
    device_queue.pack = [backend, &progress,
                         name = entry.first.name()](int64_t most) -> absl::StatusOr<int64_t> {
      TANDEM_ASSIGN_OR_RETURN(const int64_t taken, backend->pack_weights(most));
      if (progress && taken > 0) {
        progress(absl::StrFormat("%s: %.1f MB of weights packed for few rows", name,
                                 static_cast<double>(taken) / 1e6));
      }
      return taken;
    };
  }
  return pack_in_turn(device_queues);
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Devices>> Devices::load(
    const EngineConfig& config, const Clock* clock,
    const std::function<void(absl::string_view)>& progress) {
  auto devices = std::make_unique<LoadedDevices>(clock);
  TANDEM_RETURN_IF_ERROR(devices->load(config, progress));
#ifdef TANDEM_WITH_TORCH
  return_freed_memory();
#endif
  return absl::StatusOr<std::unique_ptr<Devices>>(std::move(devices));
}

absl::Status check_files([[maybe_unused]] const EngineConfig& config) {
#ifdef TANDEM_WITH_TORCH
  for (const ModelConfig& model : config.models) {
    if (model.fake.has_value()) continue;
    LoadedModel unused;
    TANDEM_RETURN_IF_ERROR(load_text(model.path, &unused));
    TANDEM_RETURN_IF_ERROR(load_generation_config(model.path).status());
    TANDEM_RETURN_IF_ERROR(load_hf_config(model.path).status());
  }
#endif
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> divide_pages(const std::vector<PoolRequest>& models,
                                                  int64_t budget_bytes, int max_running) {
  std::vector<int64_t> pages(models.size(), 0);
  std::vector<size_t> sharing;  // models that have no pages yet
  int64_t left = budget_bytes;
  for (const PoolRequest& m : models) left = std::max<int64_t>(0, left - m.bytes_besides);
  for (size_t i = 0; i < models.size(); ++i) {
    const PoolRequest& m = models[i];
    pages[i] = m.wanted_pages;
    if (m.wanted_pages == 0) sharing.push_back(i);
    if (m.wanted_pages * m.page_bytes > left) {
      return absl::ResourceExhaustedError(
          absl::StrCat("kv_pages of model ", m.name, ": ", m.wanted_pages, " of ", m.page_bytes,
                       " bytes; allowed: at most ", std::max<int64_t>(0, left / m.page_bytes),
                       " with memory_bytes: ", budget_bytes));
    }
    left -= m.wanted_pages * m.page_bytes;
  }
  const auto bytes_per_row = [&] {
    double sum = 0;
    for (const size_t i : sharing) {
      sum += static_cast<double>(models[i].page_bytes) / models[i].page_rows;
    }
    return sum;
  };
  const auto context_pages = [](const PoolRequest& m) {
    return (int64_t{m.max_positions} + m.page_rows - 1) / m.page_rows;
  };
  const double all_bytes_per_row = bytes_per_row();
  int64_t rows = 0;
  for (bool again = true; again && !sharing.empty();) {
    rows = static_cast<int64_t>(static_cast<double>(left) / bytes_per_row());
    again = std::erase_if(sharing, [&](size_t i) {
              const int64_t most = context_pages(models[i]) * max_running;
              if (rows / models[i].page_rows < most) return false;
              pages[i] = most;
              left -= most * models[i].page_bytes;
              return true;
            }) > 0;
  }
  for (const size_t i : sharing) pages[i] = rows / models[i].page_rows;
  const auto short_of = std::find(pages.begin(), pages.end(), 0);
  if (short_of == pages.end()) return pages;
  const PoolRequest& m = models[static_cast<size_t>(short_of - pages.begin())];
  int64_t named = 0, contexts = 0;
  int page_rows = 0;
  for (const PoolRequest& r : models) {
    named += r.wanted_pages * r.page_bytes + r.bytes_besides;
    if (r.wanted_pages > 0) continue;
    page_rows = std::max(page_rows, r.page_rows);
    contexts += context_pages(r) * r.page_bytes;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory_bytes: ", budget_bytes, "; model ", m.name, " needs ", m.page_bytes,
      " bytes for a page of ", m.page_rows, " rows; allowed: at least ",
      named + static_cast<int64_t>(std::ceil(all_bytes_per_row * page_rows)),
      " for a page of each model of the device, ", named + contexts, " for a whole context"));
}

}  // namespace tandem
