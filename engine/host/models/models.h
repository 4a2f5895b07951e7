// Devices and the models on them: from configuration to backends that the loop can drive.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/config.h"
#include "engine/host/deployment.h"
#include "engine/pass/backend.h"
#include "engine/sampling/value_store.h"

namespace tandem {

// Owns every backend and what they share.
class Devices {
 public:
  // Loads all models of `config`; says so through `progress`, a line each. Errors name the model
  // and the file or field.
  static absl::StatusOr<std::unique_ptr<Devices>> load(
      const EngineConfig& config, const Clock* clock,
      const std::function<void(absl::string_view)>& progress);
  virtual ~Devices() = default;

  virtual std::vector<Backend*> backends() const = 0;  // by DeviceId
  // The configuration's, by name.
  virtual const std::map<std::string, LoadedModel>& models() const = 0;
  // And with them their replicas and encoders: by id.
  virtual std::vector<const LoadedModel*> all() const = 0;
};

// Reads the models' small files (configuration, tokenizer, chat template, a GGUF file's header), no
// weights. Errors are those of load().
absl::Status check_files(const EngineConfig& config);

// Pages for the models of one device from its budget. Those that the deployment names come first;
// the other models share what is left row for row, whatever a row of each costs, so that a large
// model and its small one hold the same sequences. None gets more than `max_running` sequences of
// its longest context need; the rest is the others'.
// RESOURCE_EXHAUSTED, naming field, value and what would do, when there is no page for one of them.
struct PoolRequest {
  std::string name;
  int64_t page_bytes = 0;
  int page_rows = 16;
  int max_positions = 0;
  int64_t wanted_pages = 0;   // 0: from the budget
  int64_t bytes_besides = 0;  // that the model takes of the budget first
};
absl::StatusOr<std::vector<int64_t>> divide_pages(const std::vector<PoolRequest>& models,
                                                  int64_t budget_bytes, int max_running);

}  // namespace tandem
