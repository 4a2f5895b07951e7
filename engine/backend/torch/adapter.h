// The weights of a model's adapters and early heads (weights/adapter_file.h), on its device.
//
// Values have the residual stream's type. AdapterId and HeadId each count from 0, in the order of
// ModelConfig::extras.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/torch/model/linear.h"
#include "engine/backend/torch/model/lora.h"
#include "engine/backend/torch/weights/adapter_file.h"
#include "engine/base/ids.h"
#include "engine/base/mutex.h"

namespace tandem {

// Reads rows after layers [0, layer): the model's final norm and output matrix get h + up (down h).
class EarlyHead {
 public:
  static absl::StatusOr<EarlyHead> load(const AdapterFile& file, const WeightStore& store);

  int layer() const { return layer_; }
  // hidden: [n, hidden], in place. A row's result depends on that row alone.
  void apply(at::Tensor& hidden);

 private:
  int layer_ = 0;
  Linear down_, up_;
  RowBuffer inner_, scratch_;
};

// Maps hidden rows of another model to inputs of this one: Linear, ReLU, Linear.
class Projector {
 public:
  static absl::StatusOr<Projector> load(const AdapterFile& file, const WeightStore& store);

  int source() const { return source_; }  // width of the input rows
  // out: [n, hidden], rows: [n, source]
  void project(at::Tensor& out, const at::Tensor& rows);

 private:
  int source_ = 0;
  Linear first_, second_;
  RowBuffer inner_;
};

struct Adapter {
  // Embeddings of mask tokens (In::kMask), [M, hidden]; undefined: none
  at::Tensor masks;
  // Prompt keys and values that mask rows see besides the context, [layers, P, kv_heads, head_dim];
  // undefined: none
  at::Tensor prompt_keys, prompt_values;
  std::optional<LoraWeights> additions;  // of mask rows
  std::optional<Projector> projector;    // for In::kEmbed
};

// The LoRA adapters of a model, by LoraId. They may change while batches run. Thread-safe.
class LoraTable {
 public:
  // Null: there is none. Valid until remove().
  const LoraWeights* find(LoraId id) const;
  void add(LoraId id, LoraWeights weights);
  void remove(LoraId id);  // REQUIRES: no batch uses it

 private:
  mutable Mutex mutex_;
  std::map<LoraId, std::unique_ptr<const LoraWeights>> all_ ABSL_GUARDED_BY(mutex_);
};

struct ModelExtras {
  std::vector<EarlyHead> heads;   // by HeadId
  std::vector<Adapter> adapters;  // by AdapterId
  std::unique_ptr<LoraTable> loras = std::make_unique<LoraTable>();

  // Loads the file's adapter or head in fp32 (fp64 with fp64 weights); additions in the type of
  // their file. config: the loaded layers. Errors as load_matrix().
  absl::Status add(const AdapterFile& file, const DecoderConfig& config, WeightStore store);
};

}  // namespace tandem
