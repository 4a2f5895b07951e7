// Random models of the Llama family, in memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/backend/torch/device.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"
#include "engine/base/config.h"

namespace tandem {

struct TinyModel {
  DecoderConfig config;
  bool tied = false;
  DType dtype = DType::kFloat64;
  DType kv_dtype = DType::kAuto;
  std::vector<LayerShard> shards;  // empty: all layers are the device's
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, TensorView> tensors;  // views of values

  TinyModel() = default;
  TinyModel(TinyModel&&) = default;

  absl::Status load_into(TorchDevice& device, ModelId id, int page_rows) const;
};

// 64 tokens, hidden 32, 6 layers, 4 query heads of 8 on 2 kv heads.
DecoderConfig tiny_config();

// Weights are scaled so that logits vary and are rarely near ties.
TinyModel tiny_model(const DecoderConfig& config = tiny_config(), uint64_t seed = 1,
                     bool tied = false);

std::vector<Token> random_tokens(int n, int vocab, uint64_t seed);

}  // namespace tandem
