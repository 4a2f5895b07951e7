// T5, v1.1, Flan-T5 and mT5: encoder and decoder with RMS norms, a distance bias instead of
// positions, unscaled scores, and a plain or gated MLP. The original T5 ties the head to the
// embedding and scales its input. Transformers: modeling_t5.py, modeling_mt5.py
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/architectures/architecture.h"
#include "engine/backend/torch/weights/hf/fields.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// T5 has no maximum length. This limit bounds memory.
constexpr int kMaxRows = 4096;

// Tensor names of the encoder or decoder.
DecoderNames names_of(const std::string& half, bool gated) {
  const bool decoder = half == "decoder";
  const std::string mlp = decoder ? "layer.2." : "layer.1.";
  DecoderNames names;
  names.embedding = "shared";
  names.layer = half + ".block.";
  names.attention_norm = "layer.0.layer_norm";
  names.qkv = {"layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"};
  names.o = "layer.0.SelfAttention.o";
  if (decoder) {
    names.cross_norm = "layer.1.layer_norm";
    names.cross_q = "layer.1.EncDecAttention.q";
    names.cross_kv = {"layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"};
    names.cross_o = "layer.1.EncDecAttention.o";
  }
  names.mlp_norm = mlp + "layer_norm";
  names.up = {mlp + "DenseReluDense.wi"};
  if (gated) names.up = {mlp + "DenseReluDense.wi_0", mlp + "DenseReluDense.wi_1"};
  names.down = mlp + "DenseReluDense.wo";
  names.final_norm = half + ".final_layer_norm";
  names.distance_bias = half + ".block.0.layer.0.SelfAttention.relative_attention_bias";
  names.copies = {"encoder.embed_tokens", "decoder.embed_tokens"};
  // Present in old files and unused.
  names.ignored = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"};
  return names;
}

void read_mlp(const HfFile& file, const char* fallback, DecoderConfig& c) {
  struct Kind {
    const char *projection, *act_fn;
    Activation activation;
    bool gated;
  };
  constexpr std::array<Kind, 6> kKinds{{{"relu", "relu", Activation::kRelu, false},
                                        {"gelu", "gelu", Activation::kGelu, false},
                                        {"silu", "silu", Activation::kSilu, false},
                                        {"gated-relu", "relu", Activation::kRelu, true},
                                        {"gated-gelu", "gelu_new", Activation::kGeluTanh, true},
                                        {"gated-silu", "silu", Activation::kSilu, true}}};
  JsonFields& fields = file.fields;
  const std::string name = fields.text("feed_forward_proj", fallback);
  std::string allowed;
  for (const Kind& kind : kKinds) {
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", kind.projection);
    if (name != kind.projection) continue;
    c.activation = kind.activation;
    c.gated = kind.gated;
    // Fields that repeat information from feed_forward_proj, in some files.
    if (fields.text("dense_act_fn", kind.act_fn) != kind.act_fn) {
      fields.refuse("dense_act_fn", absl::StrCat(kind.act_fn, " with feed_forward_proj ", name));
    }
    if (fields.boolean("is_gated_act", kind.gated) != kind.gated) {
      fields.refuse("is_gated_act", kind.gated ? "true" : "false");
    }
    return;
  }
  fields.refuse("feed_forward_proj", allowed);
}

void read_distances(const HfFile& file, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  const char* const field = "relative_attention_num_buckets";
  c.distance_buckets = static_cast<int>(fields.integer(field, 32, 4, 65536));
  if (c.distance_buckets % 4 != 0) fields.refuse(field, "multiples of 4");
  c.max_distance = static_cast<int>(
      fields.integer("relative_attention_max_distance", 128, c.distance_buckets / 2 + 1, 65536));
  if (c.max_distance <= c.distance_buckets / 2) {  // the default may be too small
    fields.refuse("relative_attention_max_distance",
                  absl::StrCat("more than ", c.distance_buckets / 2));
  }
}

absl::Status read(const HfFile& file, const char* mlp, bool scales, DecoderConfig& c) {
  JsonFields& fields = file.fields;
  c.vocab_size = read_size(file, "vocab_size", std::nullopt, kMaxVocab);
  c.hidden_size = read_size(file, "d_model", std::nullopt, kMaxWidth);
  c.intermediate_size = read_size(file, "d_ff", std::nullopt, kMaxWidth);
  c.heads = c.kv_heads = read_size(file, "num_heads", std::nullopt, kMaxHeads);
  c.head_dim = read_size(file, "d_kv", std::nullopt, 1024);
  const int layers = read_size(file, "num_layers", std::nullopt, kMaxLayers);
  c.layers = read_size(file, "num_decoder_layers", layers, kMaxLayers);
  c.max_positions = kMaxRows;
  c.norm_eps = fields.number("layer_norm_epsilon", 1e-6, 0, 1);
  c.attention_scale = 1;
  c.rotary = false;
  read_mlp(file, mlp, c);
  read_distances(file, c);
  TANDEM_RETURN_IF_ERROR(fields.status());
  auto encoder = std::make_shared<DecoderConfig>(c);
  encoder->layers = layers;
  encoder->names = names_of("encoder", c.gated);
  c.encoder = std::move(encoder);
  c.names = names_of("decoder", c.gated);
  c.start_token =
      static_cast<Token>(fields.integer("decoder_start_token_id", 0, 0, c.vocab_size - 1));
  // In files of Transformers 4, tie_word_embeddings decides whether the head's input is scaled;
  // v1.1 has `false`.
  const bool tied = fields.boolean("tie_word_embeddings", true);
  if (scales && fields.boolean("scale_decoder_outputs", tied)) {
    c.output_scale = 1 / std::sqrt(static_cast<double>(c.hidden_size));
  }
  c.tie_word_embeddings = true;  // default
  return absl::OkStatus();
}

absl::Status read_t5(const HfFile& file, DecoderConfig& c) { return read(file, "relu", true, c); }

absl::Status read_mt5(const HfFile& file, DecoderConfig& c) {
  return read(file, "gated-gelu", false, c);
}

}  // namespace

const Architecture kT5{"t5", "T5ForConditionalGeneration", read_t5, true};
const Architecture kMt5{"mt5", "MT5ForConditionalGeneration", read_mt5, true};

}  // namespace tandem
