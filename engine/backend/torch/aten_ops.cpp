// The operations of ops.h on a CPU, in LibTorch's operators: the reference for the kernels in cpu/.
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "engine/backend/torch/ops.h"

namespace tandem {
namespace {

at::ScalarType arithmetic(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The key or value of a cache row, all kv heads: [kv_heads, head_dim], a view.
at::Tensor key_of(const LayerKv& kv, int64_t page, int64_t slot) {
  return kv.keys.select(0, page).select(2, slot);
}
at::Tensor value_of(const LayerKv& kv, int64_t page, int64_t slot) {
  return kv.values.select(0, page).select(1, slot);
}

// Keys or values of the cache rows that row r sees: [heads, rows, head_dim] in fp32 or fp64.
at::Tensor seen(const LayerKv& kv, bool keys, const RowView& rows, int r) {
  std::vector<int64_t> page, slot;
  const auto add = [&](int c) {
    page.push_back(rows.pages[rows.table[r] + c / rows.page_rows]);
    slot.push_back(c % rows.page_rows);
  };
  for (int c = rows.first_dense(r); c < rows.dense_end[r]; ++c) add(c);
  for (int e = rows.first_extra(r); e < rows.extra_end[r]; ++e) add(rows.extra[e]);
  const auto index = [](std::vector<int64_t>& v) {
    return at::from_blob(v.data(), {static_cast<int64_t>(v.size())}, at::kLong);
  };
  // [pages, page_rows, kv_heads, head_dim]
  const at::Tensor by_row = keys ? kv.keys.permute({0, 3, 1, 2}) : kv.values.permute({0, 2, 1, 3});
  return by_row.index({index(page), index(slot)})
      .to(arithmetic(kv.keys))
      .transpose(0, 1)
      .repeat_interleave(kv.heads / kv.kv_heads, 0);
}

// The bias of row r's scores, [heads, 1, keys], in the order of seen().
std::optional<at::Tensor> bias_of(const DistanceBias& bias, const RowView& rows, int r) {
  if (!bias.table.defined()) return std::nullopt;
  std::vector<int64_t> column;
  const auto add = [&](int key) {
    column.push_back(bias.before + std::clamp(key - rows.position[r], -bias.before, bias.after));
  };
  for (int c = rows.first_dense(r); c < rows.dense_end[r]; ++c) add(c);
  for (int e = rows.first_extra(r); e < rows.extra_end[r]; ++e) {
    add(rows.last_key(r) + 1 - (rows.extra_end[r] - e));
  }
  const at::Tensor index =
      at::from_blob(column.data(), {static_cast<int64_t>(column.size())}, at::kLong);
  return bias.table.index_select(1, index).unsqueeze(1);
}

at::Tensor normed(const at::Tensor& x, const Norm& norm) {
  if (norm.kind == NormKind::kLayer) {
    return at::layer_norm(x, norm.weight.sizes(), norm.weight, norm.bias, norm.eps);
  }
  return norm.weight * (x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + norm.eps));
}

void norm(at::Tensor& out, const at::Tensor& x, const Norm& norm) { out.copy_(normed(x, norm)); }

void add_norm(at::Tensor& x, const at::Tensor& y, const Norm& norm) {
  x.add_(normed(y.to(arithmetic(y)), norm));
}

void norm_heads(at::Tensor& x, int first, int heads, int head_dim, const Norm& norm) {
  at::Tensor some = x.view({x.size(0), -1, head_dim}).narrow(1, first, heads);
  some.copy_(normed(some.to(arithmetic(x)), norm));
}

at::Tensor activated(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
  }
  return x;
}

void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope) {
  const int half = kv.head_dim / 2;
  for (int r = 0; r < rows.rows; ++r) {
    at::Tensor heads = qkv.select(0, r).view({-1, kv.head_dim});
    at::Tensor rotated = heads.narrow(0, 0, kv.heads + kv.kv_heads);
    const at::Tensor a = rotated.narrow(1, 0, half).to(arithmetic(qkv));
    const at::Tensor b = rotated.narrow(1, half, half).to(arithmetic(qkv));
    at::Tensor turned = rotated.to(arithmetic(qkv));
    if (rope.inverse_frequencies.defined()) {
      const at::Tensor c = rope.cosine.select(0, rows.position[r]);
      const at::Tensor s = rope.sine.select(0, rows.position[r]);
      turned = at::cat({a * c - b * s, b * c + a * s}, 1);
    }
    heads.narrow(0, 0, kv.heads).copy_(turned.narrow(0, 0, kv.heads));
    const int64_t page = rows.slot[r] / rows.page_rows;
    const int64_t slot = rows.slot[r] % rows.page_rows;
    key_of(kv, page, slot).copy_(turned.narrow(0, kv.heads, kv.kv_heads));
    value_of(kv, page, slot).copy_(heads.narrow(0, kv.heads + kv.kv_heads, kv.kv_heads));
  }
}

void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale, const DistanceBias& bias) {
  for (int r = 0; r < rows.rows; ++r) {
    const at::Tensor q = qkv.select(0, r)
                             .narrow(0, 0, int64_t{kv.heads} * kv.head_dim)
                             .to(arithmetic(qkv))
                             .view({1, kv.heads, 1, kv.head_dim});
    out.select(0, r).copy_(at::scaled_dot_product_attention(q, seen(kv, true, rows, r).unsqueeze(0),
                                                            seen(kv, false, rows, r).unsqueeze(0),
                                                            bias_of(bias, rows, r),
                                                            /*dropout_p=*/0,
                                                            /*is_causal=*/false, scale)
                               .view(-1));
  }
}

void gate(at::Tensor& out, const at::Tensor& gate_up, Activation activation) {
  const int64_t width = out.size(1);
  const at::Tensor both = gate_up.to(arithmetic(gate_up));
  out.copy_(activated(both.narrow(1, 0, width), activation) * both.narrow(1, width, width));
}

void activate(at::Tensor& x, Activation activation) {
  x.copy_(activated(x.to(arithmetic(x)), activation));
}

void add_lora(at::Tensor& to, const at::Tensor& x, const LoraRowsOfLayer& rows, bool add,
              at::Tensor& ranks) {
  const at::ScalarType type = arithmetic(x);
  const auto numbers = [&](const void* from, at::IntArrayRef shape) {
    return at::from_blob(const_cast<void*>(from), shape, type);
  };
  for (int64_t r = 0; r < x.size(0); ++r) {
    const LoraLayer* const adapter = rows.rows.adapter[r];
    if (adapter == nullptr) continue;
    const LoraLayer& layer = adapter[rows.layer];
    if (!add) to.select(0, r).zero_();
    if (layer.a == nullptr) continue;
    const int64_t all_ranks = layer.rank_end[kMostLoraMatrices - 1];
    at::Tensor inner = ranks.select(0, r).narrow(0, 0, all_ranks);
    at::mv_out(inner, numbers(layer.a, {all_ranks, x.size(1)}), x.select(0, r).to(type));
    for (size_t m = 0; m < size_t{kMostLoraMatrices}; ++m) {
      if (layer.b[m] == nullptr) continue;
      const int64_t first = m == 0 ? 0 : layer.rank_end[m - 1];
      const int64_t column = m == 0 ? 0 : layer.column_end[m - 1];
      const int64_t rank = layer.rank_end[m] - first, width = layer.column_end[m] - column;
      to.select(0, r)
          .narrow(0, column, width)
          .add_(at::mv(numbers(layer.b[m], {rank, width}).t(), inner.narrow(0, first, rank)),
                layer.scale[m]);
    }
  }
}

void add_rows(at::Tensor& to, const AddedRows& added) {
  for (int64_t r = 0; r < to.size(0); ++r) {
    if (added.row[r] >= 0) to.select(0, r).add_(added.sums.select(0, added.row[r]));
  }
}

int64_t packed_numbers(int64_t outs, int64_t in, at::ScalarType, bool) { return outs * in; }

at::Tensor pack(const at::Tensor& weights, bool) { return weights.clone(); }

void linear(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
            const at::Tensor& bias) {
  out.copy_(at::linear(x, weight, bias));
}

void add_linear(at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias, at::Tensor& /*scratch*/) {
  residual.add_(at::linear(x, weight, bias));
}

void multiply(at::Tensor& out, const LinearInput& input, const at::Tensor& weights,
              const Epilogue& e) {
  if (input.norm != nullptr) norm(*input.normed, input.x, *input.norm);
  const at::Tensor& rows = input.norm != nullptr ? *input.normed : input.x;
  at::Tensor y = at::linear(rows, weights, e.bias);
  if (e.added != nullptr) add_rows(y, *e.added);
  switch (e.then) {
    case ProductThen::kStore:
      out.copy_(y);
      break;
    case ProductThen::kActivate:
      out.copy_(activated(y, e.activation));
      break;
    case ProductThen::kAdd:
      out.add_(y);
      break;
    case ProductThen::kGate:
      gate(out, y, e.activation);
      break;
  }
}

void packed_product(at::Tensor& out, const LinearInput& x, const at::Tensor& weights,
                    int64_t /*outs*/, const Epilogue& e) {
  multiply(out, x, weights, e);
}

// Blocks are decoded to [outs, in] fp32.
BlockMatrix pack_blocks(const cpu::QuantizedMatrix& m, size_t segment, at::Device) {
  const cpu::QuantizedMatrix::Segment& s = m.segments()[segment];
  at::Tensor all = at::empty({s.outs, m.in()}, at::kFloat);
  auto* const to = static_cast<float*>(all.mutable_data_ptr());
  for (int64_t r = 0; r < s.outs; ++r) m.unpack(s.first_out + r, to + r * m.in());
  return {all, s.format, s.outs, m.in(), m.layout() == cpu::Layout::kPairs};
}

void block_product(at::Tensor& out, const LinearInput& x, const std::vector<BlockMatrix>& parts,
                   const Epilogue& e) {
  std::vector<at::Tensor> numbers;
  for (const BlockMatrix& part : parts) numbers.push_back(part.data);
  multiply(out, x, at::cat(numbers), e);
}

void unpack_blocks(at::Tensor& to, const BlockMatrix& m, const int32_t* rows) {
  for (int64_t r = 0; r < to.size(0); ++r) {
    const int64_t row = rows == nullptr ? r : rows[r];
    if (row >= 0) to.select(0, r).copy_(m.data.select(0, row));
  }
}

// On a CPU, LibTorch's product has one scale per matrix, so rows and columns are scaled afterwards.
void fp8_product(at::Tensor& out, const at::Tensor& x, const Fp8Weights& weights,
                 const at::Tensor& bias) {
  const at::Tensor scale = at::clamp_min(at::amax(at::abs(x), {1}, /*keepdim=*/true) / kFp8Most,
                                         std::numeric_limits<float>::min());
  const at::Tensor one = at::ones({}, at::kFloat);
  at::Tensor y = at::_scaled_mm((x / scale).to(at::kFloat8_e4m3fn), weights.codes.t(), one, one, {},
                                {}, at::kFloat);
  y.mul_(scale).mul_(weights.scales);
  if (bias.defined()) y.add_(bias);
  out.copy_(y);
}

}  // namespace

const Ops& aten_ops() {
  static const Ops ops = [] {
    Ops some = cpu_ops();  // operations that only copy or scale
    some.norm = norm;
    some.add_norm = add_norm;
    some.norm_heads = norm_heads;
    some.rope_and_store = rope_and_store;
    some.attention = attention;
    some.gate = gate;
    some.activate = activate;
    some.add_lora = add_lora;
    some.add_rows = add_rows;
    some.linear = linear;
    some.add_linear = add_linear;
    some.packed_numbers = packed_numbers;
    some.pack = pack;
    some.packed_product = packed_product;
    some.pack_blocks = pack_blocks;
    some.block_product = block_product;
    some.unpack_blocks = unpack_blocks;
    some.fp8_product = fp8_product;
    return some;
  }();
  return ops;
}

}  // namespace tandem
