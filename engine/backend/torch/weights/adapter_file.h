// Adapters and heads of a base model: a directory with adapter.json and adapter.safetensors.
//
//   {"format": "tandem-adapter-1",
//    "kind": "head",           // "masks", "projector"
//    "layer": 4,               // of a head: its input is the hidden state after layers [0, 4)
//    "base": {"vocab_size": 4096, "hidden_size": 320, "layers": 8, "heads": 5, "kv_heads": 1,
//             "head_dim": 64, "fingerprint": "9c41b7e2f00d5a13"}}
//
//   kind        tensors, all floating (H: hidden_size)
//   head        down.weight [r, H], up.weight [H, r]: the model's final norm and output matrix
//               are applied to h + up (down h)
//   masks       masks [M, H]: input embeddings of mask tokens. Optional prompt.keys, prompt.values
//               [layers, P, kv_heads, head_dim]: keys and values that mask tokens see before the
//               context. With "additions": true, the directory also has a LoRA adapter
//               (lora_file.h), whose additions mask tokens take (arXiv 2507.11851)
//   projector   0.weight [inner, source], 0.bias [inner], 2.weight [H, inner], 2.bias [H]:
//               Linear, ReLU, Linear, from hidden states of a source model to input embeddings
//
// Additional fields of a projector (LLM-to-SLM):
//
//   "source": {"hidden_size": 320, "layers": 8, "fingerprint": ".."}
//   "layer": 8,            // hidden states after layers [0, 8) of the source model, for the prompt
//   "fusion": "add",       // "add" to the prompt's embeddings, or "replace" them
//   "tokens": "shared"     // "shared": both models use the same token ids for the prompt
//                          // "source": ids of the source model only; requires "replace"
//                          // "aligned": each model tokenizes the text itself; a token of the base
//                          //   model gets the state of the source token with its last byte
//
// If the source model has an encoder, its encoder states are used, and `layers` and `layer` are
// both the encoder's number of layers. If the base model has an encoder, the encoder gets the
// projected input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/lora_file.h"

namespace tandem {

// Identifies a base model among models of the same shape. FNV-1a (64 bits, in hex) over the tensors
// of decoder_tensors(), sorted by name: for each, the name, then 64 elements, evenly spaced from
// the first to the last, rounded to bf16, in little-endian order. A model has the same fingerprint
// in fp32 and bf16. REQUIRES: check_decoder() succeeded, and the names are those it returned.
absl::StatusOr<std::string> fingerprint_of(const DecoderConfig& config, bool tied,
                                           const TensorSource& source);

struct AdapterFile {
  enum Kind : uint8_t { kHead, kMasks, kProjector };
  Kind kind = kHead;
  int layer = 0;                   // kHead, kProjector
  bool replace = false;            // kProjector: fusion
  bool foreign = false;            // kProjector: tokens "source"
  bool aligned = false;            // kProjector: tokens "aligned"
  int64_t source_hidden = 0;       // kProjector
  std::string source_fingerprint;  // kProjector: fingerprint_of() the source model
  Checkpoint tensors;
  std::optional<LoraFile> additions;  // kMasks

  // NOT_FOUND: a file is missing. INVALID_ARGUMENT, with the file, the field or tensor, its value
  // and the allowed range: any other deviation from the format above, a number that is NaN or
  // infinite, or an adapter of another model. fingerprint: fingerprint_of() the base model.
  static absl::StatusOr<AdapterFile> open(const std::string& directory, const DecoderConfig& base,
                                          const std::string& fingerprint);
};

const char* adapter_kind_name(AdapterFile::Kind kind);  // as spelled in the file

}  // namespace tandem
