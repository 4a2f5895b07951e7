#include "engine/backend/torch/adapter.h"

#include <utility>

#include "engine/backend/torch/model/load.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// A matrix [out, in] of a file that passed its checks.
LinearSpec spec_of(const AdapterFile& file, const char* name, bool bias) {
  const std::vector<int64_t>& shape = file.tensors.find(std::string(name) + ".weight")->shape;
  return {{name}, {shape[0]}, shape[1], bias};
}

}  // namespace

absl::StatusOr<EarlyHead> EarlyHead::load(const AdapterFile& file, const WeightStore& store) {
  EarlyHead head;
  head.layer_ = file.layer;
  const LinearSpec down = spec_of(file, "down", false);
  TANDEM_ASSIGN_OR_RETURN(head.down_, Linear::load(file.tensors, store, down));
  TANDEM_ASSIGN_OR_RETURN(head.up_, Linear::load(file.tensors, store, spec_of(file, "up", false)));
  head.inner_ = RowBuffer(down.outs[0], store.rows(), store.device);
  head.scratch_ = RowBuffer(down.in, store.rows(), store.device);
  return head;
}

void EarlyHead::apply(at::Tensor& hidden) {
  at::Tensor& inner = inner_.rows(hidden.size(0));
  down_.into(inner, hidden);
  up_.add_to(hidden, inner, scratch_.rows(hidden.size(0)));
}

absl::StatusOr<Projector> Projector::load(const AdapterFile& file, const WeightStore& store) {
  Projector p;
  const LinearSpec first = spec_of(file, "0", true);
  TANDEM_ASSIGN_OR_RETURN(p.first_, Linear::load(file.tensors, store, first));
  TANDEM_ASSIGN_OR_RETURN(p.second_, Linear::load(file.tensors, store, spec_of(file, "2", true)));
  p.source_ = static_cast<int>(first.in);
  p.inner_ = RowBuffer(first.outs[0], store.rows(), store.device);
  return p;
}

void Projector::project(at::Tensor& out, const at::Tensor& rows) {
  at::Tensor& inner = inner_.rows(rows.size(0));
  first_.activate_into(inner, rows, Activation::kRelu);
  second_.into(out, inner);
}

absl::Status ModelExtras::add(const AdapterFile& file, const DecoderConfig& config,
                              WeightStore store) {
  store.dtype = store.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  if (file.kind == AdapterFile::kHead) {
    TANDEM_ASSIGN_OR_RETURN(EarlyHead head, EarlyHead::load(file, store));
    heads.push_back(std::move(head));
    return absl::OkStatus();
  }
  Adapter adapter;
  if (file.kind == AdapterFile::kProjector) {
    TANDEM_ASSIGN_OR_RETURN(adapter.projector, Projector::load(file, store));
  }
  for (const auto& [name, to] :
       {std::pair{"masks", &adapter.masks}, std::pair{"prompt.keys", &adapter.prompt_keys},
        std::pair{"prompt.values", &adapter.prompt_values}}) {
    const TensorView* view = file.tensors.find(name);
    if (view == nullptr) continue;
    TANDEM_ASSIGN_OR_RETURN(
        *to, load_tensor(file.tensors, name, view->shape, store.residual(), store.device));
  }
  if (file.additions) {
    TANDEM_ASSIGN_OR_RETURN(adapter.additions, LoraWeights::load(*file.additions, config, store));
  }
  adapters.push_back(std::move(adapter));
  return absl::OkStatus();
}

const LoraWeights* LoraTable::find(LoraId id) const {
  const MutexLock lock(&mutex_);
  const auto it = all_.find(id);
  return it == all_.end() ? nullptr : it->second.get();
}

void LoraTable::add(LoraId id, LoraWeights weights) {
  auto owned = std::make_unique<const LoraWeights>(std::move(weights));
  const MutexLock lock(&mutex_);
  all_[id] = std::move(owned);
}

void LoraTable::remove(LoraId id) {
  std::unique_ptr<const LoraWeights> removed;  // freed after the lock
  MutexLock lock(&mutex_);
  const auto it = all_.find(id);
  if (it == all_.end()) return;
  removed = std::move(it->second);
  all_.erase(it);
  lock.unlock();
}

}  // namespace tandem
