#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/fake/fake_backend.h"
#include "engine/backend/fake/timer.h"
#include "engine/base/status.h"
#include "engine/host/models/loader.h"
#include "engine/sampling/value_store.h"

namespace tandem {
namespace {

// Slots of a device's fake models, if its configuration has no memory_bytes.
constexpr int64_t kFakeBudget = int64_t{256} << 20;

class FakeLoader final : public ModelLoader {
 public:
  explicit FakeLoader(const Clock* clock) : clock_(clock) {}

  absl::Status check(const ModelConfig&) const override { return absl::OkStatus(); }
  absl::StatusOr<Backend*> load(const LoadContext& context, const DeviceConfig& device,
                                const std::vector<LoadedModel*>& models) override;
  absl::Status finish(const LoadContext&) override { return absl::OkStatus(); }
  void unload(const LoadedModel& model) override;
  absl::StatusOr<std::unique_ptr<OpenLora>> open_lora(const LoadedModel& model,
                                                      const std::string& path) override;
  void unload_lora(const LoadedModel& model, LoraId id) override {
    memory_.set_lora(model.id, id, false);
  }

 private:
  const Clock* const clock_;
  ValueStore values_;
  FakeMemory memory_;
  struct Place {
    std::unique_ptr<FakeBackend> backend;
    DeviceBudget budget;
  };
  std::map<std::string, Place> places_;  // by device
  std::unique_ptr<ThreadTimer> timer_;   // last: its thread calls the backends
};

// Of a fake model: a file, whose bytes stand for the weights and are not read.
class FakeLora final : public OpenLora {
 public:
  FakeLora(FakeMemory* memory, ModelId model, int64_t bytes)
      : memory_(memory), model_(model), bytes_(bytes) {}
  int rank() const override { return 1; }
  int64_t bytes() const override { return bytes_; }
  absl::Status read() override { return absl::OkStatus(); }
  absl::Status load(LoraId id) override {
    memory_->set_lora(model_, id, true);
    return absl::OkStatus();
  }

 private:
  FakeMemory* const memory_;
  const ModelId model_;
  const int64_t bytes_;
};

absl::StatusOr<std::unique_ptr<OpenLora>> FakeLoader::open_lora(const LoadedModel& model,
                                                                const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return out_of_range(path, "a folder", "a file, for a fake model");
  return std::make_unique<FakeLora>(&memory_, model.id, static_cast<int64_t>(bytes));
}

// Batches fail from the moment that a test declares the device lost.
void set_losses(const std::vector<LoadedModel*>& models, const DeviceConfig& device,
                FakeBackend* backend) {
  std::vector<std::function<bool()>> losses;
  for (const LoadedModel* m : models) {
    const auto& lost = m->config.fake->lost;
    if (lost) losses.emplace_back([lost, name = device.name()] { return lost(name); });
  }
  if (losses.empty()) return;
  backend->set_faults([losses](const Batch&) {
    Fault fault;
    for (const auto& lost : losses) {
      if (lost()) fault.status = absl::UnavailableError("the device is lost");
    }
    return fault;
  });
}

// ChatML, with tool calls in Hermes' format.
constexpr char kTemplate[] = R"({%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}
Call a tool by <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %})";

// The chat template of a fake model, and the text before its scripted answers.
absl::Status load_template(FakeModelConfig* fake, LoadedModel* model) {
  if (fake->chat_template.empty() && fake->answers.empty()) return absl::OkStatus();
  const nlohmann::json config = {
      {"chat_template", fake->chat_template.empty() ? kTemplate : fake->chat_template}};
  const std::string name = absl::StrCat("model ", model->config.name, ": fake.chat_template");
  TANDEM_ASSIGN_OR_RETURN(model->chat, ChatTemplate::parse(name, config.dump()));
  if (fake->answers.empty()) return absl::OkStatus();
  constexpr char kMessages[] = R"([{"role":"user","content":"?"}])";
  TANDEM_ASSIGN_OR_RETURN(const std::string with, model->chat->render(kMessages, "", "", true));
  TANDEM_ASSIGN_OR_RETURN(const std::string without, model->chat->render(kMessages, "", "", false));
  if (!absl::StartsWith(with, without) || with.size() == without.size()) {
    return out_of_range(
        name, "a template without a generation prompt",
        "one that ends with a header of the answer if add_generation_prompt is set");
  }
  fake->answer_after = with.substr(without.size());
  return absl::OkStatus();
}

absl::StatusOr<Backend*> FakeLoader::load(const LoadContext& context, const DeviceConfig& device,
                                          const std::vector<LoadedModel*>& models) {
  if (!timer_) timer_ = std::make_unique<ThreadTimer>();
  Place& place = places_[device.name()];
  const bool first = place.backend == nullptr;
  if (first) {
    place.backend = std::make_unique<FakeBackend>(&memory_, &values_, clock_, timer_.get());
  }
  FakeBackend* const backend = place.backend.get();
  std::vector<PoolRequest> requests;
  for (const LoadedModel* m : models) {
    requests.push_back({m->config.name, FakeBackend::page_bytes(m->config.page_rows),
                        m->config.page_rows, m->config.fake->max_positions, m->config.kv_pages});
  }
  const int64_t budget = device.memory_bytes > 0 ? device.memory_bytes : kFakeBudget;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int64_t> pages,
                          place.budget.divide(device.name(), requests, budget, /*remaining=*/false,
                                              context.config.limits.max_running));
  for (size_t i = 0; i < models.size(); ++i) {
    LoadedModel* const m = models[i];
    FakeModelConfig fake = *m->config.fake;
    TANDEM_RETURN_IF_ERROR(load_template(&fake, m));
    backend->add_model(m->id, m->config.name, fake,
                       pool_size(m->config.page_rows, pages[i], context.hidden_states_of(*m)), 0,
                       m->config.loras);
    place.budget.take(m->id, pages[i] * requests[i].page_bytes);
    if (!fake.trace_file.empty()) {
      TANDEM_ASSIGN_OR_RETURN(auto trace, BatchTrace::open(fake.trace_file));
      backend->set_trace(m->id, std::move(trace));
    }
    m->shape = backend->shape(m->id);
    m->pool = backend->pool(m->id);
    TANDEM_ASSIGN_OR_RETURN(m->tokenizer, Tokenizer::load_bytes());
    if (fake.vocab_size > 256) m->eos = {256};
    context.report(absl::StrCat(m->config.name, ": fake model on ", device.name(), ", ",
                                fake.vocab_size, " tokens, ", pages[i], " pages"));
  }
  if (first) set_losses(models, device, backend);
  return backend;
}

void FakeLoader::unload(const LoadedModel& model) {
  const auto place = places_.find(model.config.device);
  if (place == places_.end()) return;
  place->second.backend->remove_model(model.id);
  place->second.budget.give_back(model.id);
}

}  // namespace

std::unique_ptr<ModelLoader> make_fake_loader(const Clock* clock) {
  return std::make_unique<FakeLoader>(clock);
}

}  // namespace tandem
