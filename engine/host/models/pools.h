// Sizes of the page pools: divides the KV memory of a device among its models.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/pass/backend.h"

namespace tandem {

// How the methods of all deployments use the hidden states of a model.
struct HiddenStates {
  bool retain_top = false;  // rows that ran all layers keep theirs, for deeper models
  bool encodes = false;     // an encoder: its rows never stop between two layers
  bool condition = false;   // those of a prompt condition another model
};
using HiddenStatesByModel = std::map<std::string, HiddenStates>;  // by name in the configuration

// `retain_top`, or `condition` of a decoder, needs a frontier row for each KV row. States that
// condition another model have value slots besides.
PoolSize pool_size(int page_rows, int64_t pages, const HiddenStates& hidden);

// Bytes of one KV page and of the hidden states that belong to it.
int64_t bytes_of_page(const ModelShape& shape, const HiddenStates& hidden);

struct PoolRequest {
  std::string name;
  int64_t page_bytes = 0;
  int page_rows = 16;
  int max_positions = 0;
  int64_t wanted_pages = 0;  // 0: from the budget
  int64_t other_bytes = 0;   // that the model takes from the budget first
};
// Pages for the models of one device. Models with `wanted_pages` come first. The others share the
// rest row by row, whatever a row costs, so that a large model and its small one hold equally many
// sequences. No model gets more than `max_running` sequences of its longest context need.
// RESOURCE_EXHAUSTED, with field, value and the budget needed, if a model gets no page.
absl::StatusOr<std::vector<int64_t>> divide_pages(const std::vector<PoolRequest>& models,
                                                  int64_t budget_bytes, int max_running);

// What the models of one device have of its budget.
class DeviceBudget {
 public:
  // Pages for more models, from what is left of `budget_bytes`, or, if `remaining` is set, from all
  // of it. Errors name the device and what its models have.
  absl::StatusOr<std::vector<int64_t>> divide(const std::string& device,
                                              const std::vector<PoolRequest>& models,
                                              int64_t budget_bytes, bool remaining,
                                              int max_running) const;
  void take(ModelId model, int64_t bytes) { taken_[model] = bytes; }
  void give_back(ModelId model) { taken_.erase(model); }
  int64_t taken() const;

 private:
  std::map<ModelId, int64_t> taken_;
};

}  // namespace tandem
