#include "tests/engine/backend/torch/tiny_model.h"

#include <random>

#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

absl::Status TinyModel::load_into(TorchDevice& device, ModelId id, int page_rows) const {
  return device.load_decoder(id, "tiny", config, tied, TensorMap(tensors), dtype, page_rows,
                             kv_dtype, shards);
}

DecoderConfig tiny_config() {
  DecoderConfig c;
  c.model_type = "llama";
  c.architecture = "LlamaForCausalLM";
  c.vocab_size = 64;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.layers = 6;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.max_positions = 512;
  return c;
}

TinyModel tiny_model(const DecoderConfig& config, uint64_t seed, bool tied) {
  TinyModel m;
  m.config = config;
  m.tied = tied;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (const TensorSpec& spec : decoder_tensors(config, tied)) {
    int64_t n = 1;
    for (const int64_t d : spec.shape) n *= d;
    const bool norm = spec.name.ends_with("norm.weight");
    const bool embedding = spec.name.find("embed_tokens") != std::string::npos;
    const double scale = embedding ? 1.0 : 1.2 / std::sqrt(static_cast<double>(spec.shape.back()));
    std::vector<double>& v = m.values[spec.name];
    for (int64_t i = 0; i < n; ++i) {
      v.push_back(norm ? 1 + 0.2 * normal(random) : scale * normal(random));
    }
    TensorView view;
    view.dtype = SafeDType::kF64;
    view.shape = spec.shape;
    view.data = reinterpret_cast<const std::byte*>(v.data());
    view.bytes = v.size() * sizeof(double);
    m.tensors[spec.name] = view;
  }
  return m;
}

std::vector<Token> random_tokens(int n, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Token> tokens;
  for (int i = 0; i < n; ++i) {
    tokens.push_back(static_cast<Token>(random() % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

}  // namespace tandem
