// The supported architectures: one file each in this folder, and a line in architectures.cpp.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/json_fields.h"

namespace tandem {

// A config.json that is being read.
struct HfFile {
  JsonFields& fields;
  std::string name;        // for messages
  std::string model_type;  // as in the file
};

struct Architecture {
  const char* model_type;  // in config.json
  const char* name;        // Transformers' class name, the only entry of `architectures`
  // Sets what differs from DecoderConfig's defaults, except the fields common to all files (dtype,
  // token ids). Errors name the field, its value and the allowed range. They are returned or left
  // in file.fields.
  absl::Status (*read)(const HfFile& file, DecoderConfig& config);
  bool encoder_decoder = false;
  // The class of the model without its output matrix; null: NAMEModel for NAMEForCausalLM.
  const char* base_name = nullptr;
  bool reads_bidirectional = false;  // `read` handles use_bidirectional_attention
};

extern const Architecture kLlama, kMistral, kQwen2, kQwen3, kGemma3, kGpt2, kPhi3, kFalcon, kT5,
    kMt5, kStarcoder2;

std::span<const Architecture* const> architectures();

}  // namespace tandem
