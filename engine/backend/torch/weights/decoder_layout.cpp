#include "engine/backend/torch/weights/decoder_layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
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

// The names of a file of the base model, without the head: "layers.", not "model.layers.".
DecoderNames without_model(DecoderNames names) {
  for (std::string* name : {&names.embedding, &names.positions, &names.layer, &names.final_norm}) {
    *name = std::string(absl::StripPrefix(*name, "model."));
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
  void add_layers(const DecoderConfig& c) {
    for (int i = 0; i < c.layers; ++i) {
      const LayerSpec layer = layer_spec(c, i);
      add(layer.attention_norm);
      add(layer.qkv);
      add(layer.q_norm);
      add(layer.k_norm);
      add(layer.o);
      add(layer.attention_output_norm);
      add(layer.cross_norm);
      add(layer.cross_q);
      add(layer.memory);
      add(layer.cross_o);
      add(layer.mlp_norm);
      add(layer.up);
      add(layer.down);
      add(layer.mlp_output_norm);
    }
    if (!c.names.distance_bias.empty()) {
      all.push_back({c.names.distance_bias + ".weight", {c.distance_buckets, c.heads}});
    }
    add(final_norm_spec(c));
  }

  std::vector<TensorSpec> all;

 private:
  bool norm_bias_;
};

}  // namespace

int64_t HeadGroups::stored_row(int64_t row) const {
  if (groups == 0) return row;
  const int64_t head = row / head_dim;
  const int64_t all_queries = int64_t{groups} * queries;
  const int64_t keys_and_values = head - all_queries;
  const int64_t group = head < all_queries ? head / queries : keys_and_values % groups;
  const int64_t in_group = head < all_queries ? head % queries : queries + keys_and_values / groups;
  return (group * (queries + 2) + in_group) * head_dim + row % head_dim;
}

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
  if (c.names.grouped) s.qkv.groups = {c.kv_heads, c.heads / c.kv_heads, c.head_dim};
  s.q_norm = norm(c.names.q_norm, c.head_dim);
  s.k_norm = norm(c.names.k_norm, c.head_dim);
  s.o = linear({c.names.o}, {hidden}, q, c.o_bias);
  s.attention_output_norm = norm(c.names.attention_output_norm, hidden);
  if (c.has_cross_attention()) {
    s.cross_norm = norm(c.names.cross_norm, hidden);
    s.cross_q = linear({c.names.cross_q}, {q}, hidden, false);
    s.cross_o = linear({c.names.cross_o}, {hidden}, q, false);
    s.memory = linear(c.names.cross_kv, {kv, kv}, c.encoder->hidden_size, false);
  }
  s.mlp_norm = norm(c.names.mlp_norm, hidden);
  s.up = c.gated ? linear(c.names.up, {inner, inner}, hidden, c.mlp_bias)
                 : linear(c.names.up, {inner}, hidden, c.mlp_bias);
  s.down = linear({c.names.down}, {hidden}, inner, c.mlp_bias);
  s.mlp_output_norm = norm(c.names.mlp_output_norm, hidden);
  return s;
}

LinearSpec embedding_spec(const DecoderConfig& c) {
  return {
      .names = {c.names.embedding}, .outs = {c.vocab_size}, .in = c.hidden_size, .tokens = true};
}

LinearSpec head_spec(const DecoderConfig& c) {
  return {.names = {c.names.head}, .outs = {c.vocab_size}, .in = c.hidden_size, .tokens = true};
}

NormSpec final_norm_spec(const DecoderConfig& c) { return {c.names.final_norm, c.hidden_size}; }

std::vector<TensorSpec> decoder_tensors(const DecoderConfig& c, bool tied) {
  Specs specs(c);
  specs.add(embedding_spec(c));
  if (!c.names.positions.empty()) {
    specs.all.push_back({c.names.positions + ".weight", {c.max_positions, c.hidden_size}});
  }
  specs.add_layers(c);
  if (!tied) specs.add(head_spec(c));
  if (c.encoder != nullptr) specs.add_layers(*c.encoder);
  return std::move(specs.all);
}

absl::StatusOr<DecoderLayout> check_decoder(const DecoderConfig& given,
                                            const TensorSource& source) {
  DecoderConfig config = given;
  const DecoderNames longer = prefixed(config.names);
  const DecoderNames shorter = without_model(config.names);
  if (source.find(longer.embedding + ".weight") != nullptr) {
    config.names = longer;
  } else if (source.find(config.names.embedding + ".weight") == nullptr &&
             source.find(shorter.embedding + ".weight") != nullptr) {
    config.names = shorter;
  }
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
    // Files from 2023 and earlier contain inv_freq, which the config determines.
    const auto is_copy = [&](const std::string& copy) {
      return name == copy + ".weight" && embedding != nullptr &&
             same_values(*source.find(name), *embedding);
    };
    return absl::EndsWith(name, "rotary_emb.inv_freq") || (layout.tied && name == head_name) ||
           std::any_of(config.names.copies.begin(), config.names.copies.end(), is_copy) ||
           std::any_of(ends.begin(), ends.end(),
                       [&](const std::string& end) { return absl::EndsWith(name, end); });
  };
  TANDEM_RETURN_IF_ERROR(check_tensors(source, specs, may_ignore));
  for (const TensorSpec& spec : specs) layout.parameters += source.find(spec.name)->elements();
  return layout;
}

}  // namespace tandem
