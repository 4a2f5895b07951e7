#include "engine/backend/torch/weights/decoder_layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

bool same_values(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.block == b.block && a.shape == b.shape &&
         std::memcmp(a.data, b.data, a.bytes) == 0;
}

DecoderNames prefixed(DecoderNames names) {
  for (std::string* name : {&names.embedding, &names.positions, &names.layer, &names.final_norm}) {
    if (!name->empty()) *name = names.prefix + *name;
  }
  return names;
}

class Specs {
 public:
  explicit Specs(const DecoderConfig& config) : norm_bias_(config.norm == NormKind::kLayer) {}

  void add(const LinearSpec& linear) {
    for (size_t i = 0; i < linear.names.size(); ++i) {
      const int64_t out = linear.outs[i];
      const std::string& name = linear.names[i];
      if (linear.transposed) {
        all.push_back({name + ".weight", {linear.in, out}});
      } else {
        all.push_back({name + ".weight", {out, linear.in}});
      }
      if (linear.bias) all.push_back({name + ".bias", {out}});
    }
  }
  void add(const NormSpec& norm) {
    if (norm.name.empty()) return;
    all.push_back({norm.name + ".weight", {norm.width}});
    if (norm_bias_) all.push_back({norm.name + ".bias", {norm.width}});
  }

  std::vector<TensorSpec> all;

 private:
  bool norm_bias_;
};

}  // namespace

LayerSpec layer_spec(const DecoderConfig& c, int layer) {
  const std::string prefix = absl::StrCat(c.names.layer, layer, ".");
  const auto norm = [&](const std::string& name, int64_t width) {
    return name.empty() ? NormSpec{} : NormSpec{prefix + name, width};
  };
  const auto linear = [&](const std::vector<std::string>& names, std::vector<int64_t> outs,
                          int64_t in, bool bias) {
    LinearSpec spec{{}, std::move(outs), in, bias, c.names.transposed};
    for (const std::string& name : names) spec.names.push_back(prefix + name);
    if (names.size() == 1) {
      spec.outs = {std::accumulate(spec.outs.begin(), spec.outs.end(), int64_t{0})};
    }
    return spec;
  };
  const int64_t hidden = c.hidden_size;
  const int64_t inner = c.intermediate_size;
  const int64_t q = int64_t{c.heads} * c.head_dim;
  const int64_t kv = int64_t{c.kv_heads} * c.head_dim;
  LayerSpec s;
  s.attention_norm = norm(c.names.attention_norm, hidden);
  s.qkv = linear(c.names.qkv, {q, kv, kv}, hidden, c.qkv_bias);
  s.q_norm = norm(c.names.q_norm, c.head_dim);
  s.k_norm = norm(c.names.k_norm, c.head_dim);
  s.o = linear({c.names.o}, {hidden}, q, c.o_bias);
  s.attention_output_norm = norm(c.names.attention_output_norm, hidden);
  s.mlp_norm = norm(c.names.mlp_norm, hidden);
  s.up = c.gated ? linear(c.names.up, {inner, inner}, hidden, c.mlp_bias)
                 : linear(c.names.up, {inner}, hidden, c.mlp_bias);
  s.down = linear({c.names.down}, {hidden}, inner, c.mlp_bias);
  s.mlp_output_norm = norm(c.names.mlp_output_norm, hidden);
  return s;
}

LinearSpec embedding_spec(const DecoderConfig& c) {
  return {{c.names.embedding}, {c.vocab_size}, c.hidden_size};
}

LinearSpec head_spec(const DecoderConfig& c) {
  return {{c.names.head}, {c.vocab_size}, c.hidden_size};
}

NormSpec final_norm_spec(const DecoderConfig& c) { return {c.names.final_norm, c.hidden_size}; }

std::vector<TensorSpec> decoder_tensors(const DecoderConfig& c, bool tied) {
  Specs specs(c);
  specs.add(embedding_spec(c));
  if (!c.names.positions.empty()) {
    specs.all.push_back({c.names.positions + ".weight", {c.max_positions, c.hidden_size}});
  }
  for (int i = 0; i < c.layers; ++i) {
    const LayerSpec layer = layer_spec(c, i);
    specs.add(layer.attention_norm);
    specs.add(layer.qkv);
    specs.add(layer.q_norm);
    specs.add(layer.k_norm);
    specs.add(layer.o);
    specs.add(layer.attention_output_norm);
    specs.add(layer.mlp_norm);
    specs.add(layer.up);
    specs.add(layer.down);
    specs.add(layer.mlp_output_norm);
  }
  specs.add(final_norm_spec(c));
  if (!tied) specs.add(head_spec(c));
  return std::move(specs.all);
}

absl::StatusOr<DecoderLayout> check_decoder(const DecoderConfig& given,
                                            const TensorSource& source) {
  DecoderConfig config = given;
  const DecoderNames longer = prefixed(config.names);
  if (source.find(longer.embedding + ".weight") != nullptr) config.names = longer;
  const std::string head_name = config.names.head + ".weight";
  const TensorView* head = source.find(head_name);
  const TensorView* embedding = source.find(config.names.embedding + ".weight");
  DecoderLayout layout;
  layout.names = config.names;
  layout.tied = config.tie_word_embeddings &&
                (head == nullptr || embedding == nullptr || same_values(*head, *embedding));
  const std::vector<TensorSpec> specs = decoder_tensors(config, layout.tied);
  const auto may_ignore = [&](const std::string& name) {
    const std::vector<std::string>& ends = config.names.ignored;
    // Files of 2023 and before hold inv_freq, which follows from the config.
    return absl::EndsWith(name, "rotary_emb.inv_freq") || (layout.tied && name == head_name) ||
           std::any_of(ends.begin(), ends.end(),
                       [&](const std::string& end) { return absl::EndsWith(name, end); });
  };
  TANDEM_RETURN_IF_ERROR(check_tensors(source, specs, may_ignore));
  for (const TensorSpec& spec : specs) layout.parameters += source.find(spec.name)->elements();
  return layout;
}

}  // namespace tandem
