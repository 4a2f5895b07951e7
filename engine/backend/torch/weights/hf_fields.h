// Fields of config.json that several architectures have.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/architectures/architecture.h"

namespace tandem {

// As many as fit into an int, and more than any model has.
inline constexpr int64_t kMaxVocab = 1 << 24, kMaxWidth = 1 << 20, kMaxPositions = 1 << 26,
                         kMaxLayers = 1000, kMaxHeads = 1024;

int read_size(const HfFile& file, const char* field, std::optional<int64_t> fallback, int64_t max);

// What Transformers' class has where the file is silent.
struct SizeDefaults {
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  double norm_eps = 1e-6;
  int64_t max_positions = 0;
  const char* activation_field = "hidden_act";
  Activation activation = Activation::kSilu;  // the only one that is taken
};

// vocab_size, hidden_size and the like under Llama's names, into what they are called in `config`.
absl::Status read_sizes(const HfFile& file, const SizeDefaults& defaults, DecoderConfig& config);

// By Transformers' names. only: null, or the only one that is taken.
Activation read_activation(const HfFile& file, const char* field, Activation fallback,
                           const Activation* only = nullptr);

// Of a config whose sizes are read. Transformers 5 writes rope_parameters; 4 wrote rope_theta
// beside rope_scaling, which counts first. dynamic: plain, since its angles change only beyond
// max_position_embeddings; longrope: its short factors, and so no more positions than the original
// context has (beyond it Transformers turns all rows anew).
void read_rope(const HfFile& file, DecoderConfig& config);

// The same of models with two kinds of layers: rope_parameters.full_attention and
// .sliding_attention, or rope_theta, rope_scaling and rope_local_base_freq.
struct RopeBases {
  double full = 1e4;
  double local = 1e4;
};
void read_rope_by_layers(const HfFile& file, const RopeBases& defaults, DecoderConfig& config);

// sliding_window and layer_types. A window is refused where there is none by default.
struct WindowDefaults {
  int64_t window = 0;
  bool may = false;        // none by default, but the file may have one
  bool asked_for = false;  // only with use_sliding_window, from layer max_window_layers on
  int full_every = 0;      // without layer_types: every so manyth layer sees everything
};
void read_windows(const HfFile& file, const WindowDefaults& defaults, DecoderConfig& config);

}  // namespace tandem
