// The operations of a forward pass: one table of functions per platform.
//
// Tensors of rows are contiguous. Index arrays and RowViews are on the tensors' device. Types: see
// cpu/elementwise.h; residual streams `x` and norms are of type R, everything else of type T.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/backend/torch/cpu/columns.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/kinds.h"
#include "engine/backend/torch/lora_view.h"
#include "engine/backend/torch/row_view.h"
#include "engine/sampling/row_answer.h"

namespace tandem {

// Heads and pages of one layer's attention.
struct LayerKv {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  const at::Tensor& keys;    // as KvPool::layer_keys
  const at::Tensor& values;  // as KvPool::layer_values
};

// Added to attention scores: head h and a key d rows after the query (d < 0: before it) get
// table[h, before + clamp(d, -before, after)].
struct DistanceBias {
  at::Tensor table;  // [heads, before + 1 + after] of type R; undefined: none
  int before = 0;
  int after = 0;
};

struct Norm {
  NormKind kind = NormKind::kNone;
  at::Tensor weight;  // [width] of type R
  at::Tensor bias;    // [width] of kLayer
  double eps = 0;
};

// Angles of the rotary embedding: position * inverse_frequency[i] in fp32, as in Transformers.
// Their cosines and sines are tabulated by position on CPU, and computed in the kernel on CUDA.
class Rope {
 public:
  Rope() = default;  // no rotation
  // type: of the residual stream; factor: of cosines and sines
  Rope(std::vector<float> inverse_frequencies, at::ScalarType type, at::Device device,
       double factor = 1);

  // Extends the tables. REQUIRES: called before a batch with positions up to max_position
  void reach(int max_position);

  at::Tensor inverse_frequencies;  // [head_dim / 2] fp32, on the device; undefined: no rotation
  at::Tensor cosine, sine;         // [positions, head_dim / 2] times factor, CPU only
  double factor = 1;

 private:
  std::vector<float> host_;
  at::ScalarType type_ = at::kFloat;
  int positions_ = 0;
};

inline constexpr int kMostAnsweredVocab = 1 << 18;
inline constexpr int kMostPackedRows = 16;   // of Ops::packed_product()
inline constexpr int kMostBlockRows = 64;    // of Ops::block_product()
inline constexpr int64_t kFp8Multiple = 16;  // of the sizes of Ops::fp8_product()
inline constexpr float kFp8Most = 448;       // the largest number of e4m3

// The rows that a product reads: x, or its norm.
struct LinearInput {
  const at::Tensor& x;           // [rows, in] of type T; of type R with a norm
  const Norm* norm = nullptr;    // [in], of type R; null: none
  at::Tensor* normed = nullptr;  // scratch with a norm: [rows, in] of type T

  LinearInput(const at::Tensor& rows) : x(rows) {}  // NOLINT(google-explicit-constructor)
  LinearInput(const at::Tensor& residual, const Norm& n, at::Tensor& scratch)
      : x(residual), norm(n.kind == NormKind::kNone ? nullptr : &n), normed(&scratch) {}
};

// Numbers that are added to some rows of a product.
struct AddedRows {
  at::Tensor sums;               // [n, outs] of type R
  const int32_t* row = nullptr;  // [rows] a row of `sums`; -1: none
};

// The rows of a batch with LoRA adapters, and the layer of these adapters that changes a product.
struct LoraRowsOfLayer {
  const LoraView& rows;
  int64_t layer = 0;  // as in LoraColumns::adapter
};

// What follows a product y = x W^T.
struct Epilogue {
  const at::Tensor& bias;  // [outs], added to y; or undefined
  ProductThen then = ProductThen::kStore;
  Activation activation = Activation::kSilu;  // of kActivate and kGate
  cpu::Columns columns = {};                  // that are needed
  const AddedRows* added = nullptr;           // of kGate: added to y before the gate; null: none
};

// A matrix in blocks of one type, as Ops::pack_blocks() returns it.
struct BlockMatrix {
  at::Tensor data;
  cpu::QuantFormat format{};
  int64_t outs = 0;
  int64_t in = 0;
  bool pairs = false;  // as packed_numbers()
};

// A matrix in fp8 (e4m3): row o is codes[o] * scales[0][o].
struct Fp8Weights {
  at::Tensor codes;   // [outs, in] of kFloat8_e4m3fn
  at::Tensor scales;  // [1, outs] fp32
};

// The operations of a platform.
struct Ops {
  // x[r] = table[token[r]] where token[r] >= 0. x: [rows, hidden], table: [vocab, hidden]
  void (*embed)(at::Tensor& x, const at::Tensor& table, const int32_t* token);

  // x[r] *= scale where token[r] >= 0.
  void (*scale_rows)(at::Tensor& x, const int32_t* token, double scale);

  // x[r] += table[position[r]] where token[r] >= 0. table: [positions, hidden]
  void (*add_positions)(at::Tensor& x, const at::Tensor& table, const int32_t* token,
                        const int32_t* position);

  // to[to_index[i]] = from[from_index[i]] for i < n; a null index counts up. [.., width] each
  void (*copy_rows)(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
                    const int64_t* from_index, int64_t n);

  // out = norm(x). [rows, width]
  void (*norm)(at::Tensor& out, const at::Tensor& x, const Norm& norm);

  // x += norm(y). [rows, width]
  void (*add_norm)(at::Tensor& x, const at::Tensor& y, const Norm& norm);

  // Normalizes heads [first, first + heads) of head_dim values in every row of x, in place.
  void (*norm_heads)(at::Tensor& x, int first, int heads, int head_dim, const Norm& norm);

  // qkv: [rows, (heads + 2 kv_heads) * head_dim]. Rotates queries in place, and stores rotated keys
  // and values at the rows' slots. heads may be 0: only keys and values.
  void (*rope_and_store)(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope);

  // qkv: [rows, heads * head_dim or more], queries first; out: [rows, heads * head_dim]. For
  // cross-attention, rows are those of the keys' cache, all dense.
  void (*attention)(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
                    double scale, const DistanceBias& bias);

  // out = act(gate) * up. gate_up: [rows, 2 * width], gate first; out: [rows, width]
  void (*gate)(at::Tensor& out, const at::Tensor& gate_up, Activation activation);

  // The additions to a product of x for rows with LoRA adapters; null: model/lora.cpp multiplies
  // with each adapter. to[r] += B (A x[r]), or, without `add`, to[r] = B (A x[r]). x: [rows, in] of
  // type T; to: [rows, outs] of type T or R; ranks: scratch, [rows, most ranks of an adapter's
  // layer] of type R. A row's bits depend on that row and its adapter alone.
  void (*add_lora)(at::Tensor& to, const at::Tensor& x, const LoraRowsOfLayer& rows, bool add,
                   at::Tensor& ranks) = nullptr;
  // to[r] += added.sums[added.row[r]] if added.row[r] >= 0; null with add_lora. to: [rows, outs]
  void (*add_rows)(at::Tensor& to, const AddedRows& added) = nullptr;

  // Answers about rows of logits. logits: [rows, vocab] fp32, to which the changes are made;
  // questions, answers: [rows], on the device, as what `changes` points to. A vocabulary has at
  // most kMostAnsweredVocab tokens.
  void (*answer_rows)(at::Tensor& logits, const RowChanges& changes, const RowQuestion* questions,
                      RowAnswer* answers);

  // to[r] = the token that chosen[r] names in the cached answers; token[r] if it names none; -1 if
  // the answer is not valid. [rows] each, on the device
  void (*choose)(int32_t* to, const int32_t* token, const ChosenToken* chosen, int64_t rows,
                 const RowAnswer* cached);

  // x = act(x)
  void (*activate)(at::Tensor& x, Activation activation);

  // LibTorch's products of any number of rows. Null: the platform multiplies packed matrices only.
  // weight: [outs, in] and bias: [outs] or undefined, of type T.
  // out = x W^T + bias. out: of x's type or fp32; fp32 sums are not rounded to x's type first.
  void (*linear)(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                 const at::Tensor& bias) = nullptr;
  // residual += x W^T + bias. scratch: [rows, outs] of type T, used if residual has another type.
  void (*add_linear)(at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias, at::Tensor& scratch) = nullptr;

  // Products of up to kMostPackedRows rows with a packed copy of the weights; null: there are none.
  // The elements of the packed copy; 0: the matrix has no such product. pairs: for
  // ProductThen::kGate only
  int64_t (*packed_numbers)(int64_t outs, int64_t in, at::ScalarType type, bool pairs) = nullptr;
  // weights: [outs, in]. REQUIRES: packed_numbers() > 0
  at::Tensor (*pack)(const at::Tensor& weights, bool pairs) = nullptr;
  // weights: of pack(). out: [rows, outs], [rows, outs / 2] of kGate; of type T or fp32, of kAdd of
  // type R. A row's bits do not depend on the number of rows.
  void (*packed_product)(at::Tensor& out, const LinearInput& x, const at::Tensor& weights,
                         int64_t outs, const Epilogue& e) = nullptr;

  // Products of up to kMostBlockRows rows with weights in blocks; null: there are none, or they are
  // cpu::product(). One segment of such a matrix, copied to the device.
  BlockMatrix (*pack_blocks)(const cpu::QuantizedMatrix& m, size_t segment,
                             at::Device device) = nullptr;
  // parts: matrices whose columns are concatenated. out: as packed_product(). A row's bits do not
  // depend on the number of rows.
  void (*block_product)(at::Tensor& out, const LinearInput& x,
                        const std::vector<BlockMatrix>& parts, const Epilogue& e) = nullptr;
  // to[r] = row rows[r] of the matrix if that is not negative; rows null: all. to: [rows or outs,
  // in], fp32 or of type T: the decoded values, rounded to that type.
  void (*unpack_blocks)(at::Tensor& to, const BlockMatrix& m, const int32_t* rows) = nullptr;

  // LibTorch's products of any number of rows with weights in fp8; null: there are none. Each row
  // of x is rounded to fp8 with a scale of its own, the largest magnitude / 448. x: [rows, in];
  // out: [rows, outs], of type T or fp32. outs and in: multiples of kFp8Multiple
  void (*fp8_product)(at::Tensor& out, const at::Tensor& x, const Fp8Weights& weights,
                      const at::Tensor& bias) = nullptr;
};

const Ops& cpu_ops();   // of cpu/
const Ops& aten_ops();  // a CPU in LibTorch's operators: the reference for cpu/ in tests, and
                        // CpuKernels::kAten. Slow; bits depend on the batch.

}  // namespace tandem
