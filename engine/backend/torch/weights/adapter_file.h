// Adapters and heads of one base model: a folder with adapter.json and adapter.safetensors.
//
//   {"format": "tandem-adapter-1",
//    "kind": "head",           // "masks", "projector"
//    "layer": 4,               // of a head: it reads rows after layers [0, 4)
//    "base": {"vocab_size": 4096, "hidden_size": 320, "layers": 8, "heads": 5, "kv_heads": 1,
//             "head_dim": 64, "fingerprint": "9c41b7e2f00d5a13"}}
//
//   kind        tensors, all floating (H: hidden_size)
//   head        down.weight [r, H], up.weight [H, r]: the model's final norm and output matrix
//               read h + up (down h)
//   masks       masks [M, H]: inputs of mask rows; with prompt.keys and prompt.values
//               [layers, P, kv_heads, head_dim] also what these rows see before the context
//   projector   0.weight [inner, source], 0.bias [inner], 2.weight [H, inner], 2.bias [H]: hidden
//               rows of another model become inputs, Linear, ReLU, Linear
//
// A projector says more (LLM-to-SLM):
//   "source": {"hidden_size": 320, "layers": 8, "fingerprint": ".."}   the model whose rows it
//   takes, "layer": 8,            // after layers [0, 8) of it; all of the prompt's "fusion":
//   "add",       // to the prompt's embeddings, or "replace": in their place "tokens": "shared" //
//   both models know the prompt's ids; "source": they are the other
//                          // model's alone, whose rows stand for them: with "replace" only;
//                          // "aligned": each cuts the text in its own, and a row goes to each of
//                          // this model's tokens, that of the token with its last byte
// Where the other model has an encoder, it is that which reads: `layers` and `layer` are both all
// of the encoder's. Where this one has, its encoder is fed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/torch/weights/checkpoint.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem {

// What tells one base model from another of the same shape: FNV-1a (64 bits, in hex) over each
// tensor of decoder_tensors(), sorted by name: the name, then 64 of its numbers, evenly spread from
// the first to the last and rounded to bf16, two bytes each, the lower first. So a model has one
// fingerprint in fp32 and in bf16. REQUIRES: check_decoder() passed, and names as it says.
absl::StatusOr<std::string> fingerprint_of(const DecoderConfig& config, bool tied,
                                           const TensorSource& source);

struct AdapterFile {
  enum Kind : uint8_t { kHead, kMasks, kProjector };
  Kind kind = kHead;
  int layer = 0;                   // kHead, kProjector
  bool replace = false;            // kProjector: fusion
  bool foreign = false;            // kProjector: the ids are the other model's
  bool aligned = false;            // kProjector: each model has its own
  int64_t source_hidden = 0;       // kProjector
  std::string source_fingerprint;  // kProjector: fingerprint_of() the other model
  Checkpoint tensors;

  // NOT_FOUND: a file is missing. INVALID_ARGUMENT, naming file, field or tensor, its value and
  // what is allowed: anything else that is not as above, a number that is NaN or infinite, and an
  // adapter of another model. fingerprint: fingerprint_of() the base model.
  static absl::StatusOr<AdapterFile> open(const std::string& directory, const DecoderConfig& base,
                                          const std::string& fingerprint);
};

const char* adapter_kind_name(AdapterFile::Kind kind);  // as in the file

}  // namespace tandem
