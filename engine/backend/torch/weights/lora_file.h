// A LoRA adapter as PEFT saves it: a directory with adapter_config.json and
// adapter_model.safetensors; or a GGUF file (gguf/lora.h).
//
// An adapted linear layer has two tensors, and its result y becomes y + scale * B (A x):
//
//   base_model.model.MODULE.lora_A.weight [rank, in]
//   base_model.model.MODULE.lora_B.weight [out, rank]
//
// MODULE is the layer's name in Transformers, such as model.layers.0.self_attn.q_proj. scale is
// lora_alpha / rank; with use_rslora, lora_alpha / sqrt(rank). rank_pattern and alpha_pattern set
// both per module; their keys are the ends of module names, not regular expressions.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/mapped_file.h"
#include "engine/base/config.h"

namespace tandem {

inline constexpr int kMaxLoraRank = 256;

// The stacked matrices of a decoder layer that adapters change.
enum class LoraPart : uint8_t { kQkv, kO, kUp, kDown };
inline constexpr size_t kLoraParts = 4;
// As adapters see the part: queries, keys and values in the order of Transformers.
LinearSpec lora_spec(const DecoderConfig& config, int layer, LoraPart part);

struct LoraModule {
  int layer = 0;
  LoraPart part = LoraPart::kQkv;
  size_t matrix = 0;  // of lora_spec()
  std::string name;   // of its tensors in LoraFile::tensors, before ".lora_A.weight"
  int rank = 0;       // 1 to kMaxLoraRank
  double scale = 0;
  bool in_order =
      false;  // rows of lora_B are queries, keys and values, whatever LinearSpec::groups

  auto operator<=>(const LoraModule&) const = default;
};

struct LoraFile {
  std::vector<LoraModule> modules;  // ascending, at least one; their tensors are checked
  int rank = 0;                     // the largest
  Checkpoint tensors;
  std::map<std::string, std::string> names;  // of these tensors in a GGUF file; empty: the same

  // path: a directory, or a file that ends with .gguf. base: the model as its configuration
  // describes it; all of its layers. NOT_FOUND: a file is missing. INVALID_ARGUMENT, with the file,
  // the field or tensor, its value and the allowed range: any deviation from the formats, a number
  // that is NaN, infinite or outside the range of `numbers`, another kind of adapter (DoRA,
  // embeddings, biases, whole modules), an adapter that has to change the base model, or a base
  // model with an encoder or bidirectional attention. numbers: the type to which they will be
  // rounded; kAuto: none.
  static absl::StatusOr<LoraFile> open(const std::string& path, const DecoderConfig& base,
                                       FileAccess access = FileAccess::kMapped,
                                       DType numbers = DType::kAuto);
  // As open(), but the numbers are not checked. Those of a mapped file are not read.
  static absl::StatusOr<LoraFile> open_header(const std::string& path, const DecoderConfig& base,
                                              FileAccess access = FileAccess::kMapped);
};

}  // namespace tandem
