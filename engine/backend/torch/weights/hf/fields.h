// Fields of config.json that several architectures share.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/architectures/architecture.h"

namespace tandem {

// Limits that fit into an int and exceed those of any known model.
inline constexpr int64_t kMaxVocab = 1 << 24, kMaxWidth = 1 << 20, kMaxPositions = 1 << 26,
                         kMaxLayers = 1000, kMaxHeads = 1024;

int read_size(const HfFile& file, const char* field, std::optional<int64_t> fallback, int64_t max);

// Defaults of the Transformers class.
struct SizeDefaults {
  int64_t kv_heads = 0;  // 0: equal to heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  double norm_eps = 1e-6;
  int64_t max_positions = 0;
  const char* activation_field = "hidden_act";
  Activation activation = Activation::kSilu;  // the only supported one
};

// Reads vocab_size, hidden_size and similar fields, with Llama's names.
absl::Status read_sizes(const HfFile& file, const SizeDefaults& defaults, DecoderConfig& config);

// Reads an activation by Transformers' names. only: if not null, the only one allowed.
Activation read_activation(const HfFile& file, const char* field, Activation fallback,
                           const Activation* only = nullptr);

// Reads rotary parameters; sizes must have been read. Accepts Transformers 5's rope_parameters, and
// Transformers 4's rope_scaling (which takes precedence) and rope_theta. `dynamic` is treated as
// plain, because it differs only beyond max_position_embeddings. `longrope` uses the short factors
// and limits positions to the original context, beyond which Transformers re-rotates all cached
// keys.
void read_rope(const HfFile& file, DecoderConfig& config);

// The same for models with two kinds of layers: rope_parameters.full_attention and
// .sliding_attention, or rope_theta, rope_scaling and rope_local_base_freq.
struct RopeBases {
  double full = 1e4;
  double local = 1e4;
};
void read_rope_by_layers(const HfFile& file, const RopeBases& defaults, DecoderConfig& config);

// Reads sliding_window and layer_types. A window is rejected for architectures without one.
struct WindowDefaults {
  int64_t window = 0;
  bool may = false;        // no window by default, but the file may specify one
  bool asked_for = false;  // only with use_sliding_window, for layers from max_window_layers on
  int full_every = 0;      // without layer_types: every n-th layer has global attention
};
void read_windows(const HfFile& file, const WindowDefaults& defaults, DecoderConfig& config);

}  // namespace tandem
