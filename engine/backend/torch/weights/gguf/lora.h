// A LoRA adapter in a GGUF file, as llama.cpp's converter writes it.
//
// general.type is "adapter", adapter.type is "lora", and general.architecture is that of the base
// model. A linear layer NAME, such as blk.0.attn_q, has the tensors NAME.weight.lora_a [rank, in]
// and NAME.weight.lora_b [out, rank]. Rows of lora_b are in the order of the base model's GGUF
// file, so those of Llama's queries and keys are permuted.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/gguf/gguf.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"

namespace tandem {

struct GgufLoraModule {
  std::string name;  // in the file: "blk.0.attn_q.weight"
  TensorView a, b;   // matrices in F32, F16, BF16 or Q8_0; rows of b in the order of Transformers
};

struct GgufLora {
  double alpha = 0;  // of the scale alpha / rank; 0: the scale is 1
  // By the layer's name in Transformers, without "model.": "layers.0.self_attn.q_proj". The shapes
  // are not compared with those of the base model.
  std::map<std::string, GgufLoraModule> modules;
};

// INVALID_ARGUMENT, with `name` (the file), the key or tensor, its value and the allowed ones: a
// file of another kind, an adapter of another architecture, or a tensor that is neither lora_a nor
// lora_b of a linear layer.
absl::StatusOr<GgufLora> gguf_lora(const Gguf& gguf, absl::string_view name,
                                   const DecoderConfig& base);

}  // namespace tandem
