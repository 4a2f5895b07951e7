// The operations between products, on whichever device the tensors lie.
//
// Tensors of rows are contiguous. Index arrays and RowViews lie on the tensors' device. Types: see
// cpu/elementwise.h; residual streams `x` are of type R, all else of type T.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/backend/torch/row_view.h"

namespace tandem {

// One layer's attention: heads, and its part of the pages.
struct LayerKv {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  const at::Tensor& keys;    // as KvPool::layer_keys
  const at::Tensor& values;  // as KvPool::layer_values
};

// Angles of the rotary embedding: position * inverse_frequency[i] in float32, as Transformers has
// it; their cosines and sines are computed once per position on CPU, in the kernel on CUDA.
class Rope {
 public:
  Rope() = default;
  // type: of the residual stream
  Rope(std::vector<float> inverse_frequencies, at::ScalarType type, at::Device device);

  // To be called before a batch with positions up to this one.
  void reach(int max_position);

  at::Tensor inverse_frequencies;  // [head_dim / 2] fp32, on the device
  at::Tensor cosine, sine;         // [positions, head_dim / 2], CPU only

 private:
  std::vector<float> host_;
  at::ScalarType type_ = at::kFloat;
  int positions_ = 0;
};

namespace ops {

// x[r] = table[token[r]] where token[r] >= 0. x: [rows, hidden], table: [vocab, hidden]
void embed(at::Tensor& x, const at::Tensor& table, const int32_t* token);

// to[to_index[i]] = from[from_index[i]] for i < n; a null index counts up. [.., width] each
void copy_rows(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
               const int64_t* from_index, int64_t n);

// out = x / sqrt(mean(x^2) + eps) * weight. weight: [width] of type R
void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps);

// qkv: [rows, (heads + 2 kv_heads) * head_dim]: queries rotated in place, rotated keys and values
// stored at the rows' slots.
void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope);

// out: [rows, heads * head_dim]
void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale);

// gate_up: [rows, 2 * width]; out: [rows, width]
void silu_mul(at::Tensor& out, const at::Tensor& gate_up);

}  // namespace ops
}  // namespace tandem
