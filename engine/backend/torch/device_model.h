// A model on a device: weights, KV pool and the executor of its batches.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/backend/torch/adapter.h"
#include "engine/backend/torch/executor.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/decoder_weights.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/pass/backend.h"

namespace tandem {

struct DeviceModel {
  DecoderConfig config;
  // The same with all layers and the names of the file: what LoRA adapters are checked against.
  DecoderConfig whole;
  std::shared_ptr<const DecoderWeights> weights;
  at::ScalarType kv_type = at::kFloat;
  DType adapter_dtype = DType::kAuto;  // as in ModelConfig
  bool shares_weights = false;
  // Weights that TorchDevice::pack_weights() may pack; null: decided.
  std::shared_ptr<DecoderWeights> unpacked;
  int64_t packed_bytes = 0;  // of the packed copy of the weights
  std::unique_ptr<Model> model;
  ModelExtras extras;
  ModelShape shape;
  PoolSize size;
  std::unique_ptr<KvPool> pool;  // null before allocate_pools(), like the next one
  std::unique_ptr<Executor> executor;
};

}  // namespace tandem
