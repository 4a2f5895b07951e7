// The interface of a model to the executor: embed rows, run layers, apply the head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "engine/backend/torch/cpu/columns.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/lora.h"
#include "engine/backend/torch/row_view.h"
#include "engine/pass/backend.h"

namespace tandem {

// What rows read by cross-attention: cache rows of an encoder, all dense.
struct Memory {
  RowView rows;
  const KvPool* pool = nullptr;  // of the encoder; null: no cross-attention
};

// Used by one device queue's thread, under InferenceMode. Throws the errors of LibTorch.
class Model {
 public:
  virtual ~Model() = default;

  virtual const KvGeometry& geometry() const = 0;
  // All but the page sizes.
  virtual const ModelShape& shape() const = 0;

  // x[r] = embedding of token[r] at position[r], for rows with token[r] >= 0. x: [rows, hidden], of
  // the geometry's hidden_type; token, position: on the model's device. max_position: the largest
  // position that run() will see.
  virtual void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
                     int max_position) = 0;

  // x[r] += the learned embedding of position[r], if the model has one, for rows with replaced[r]
  // >= 0: rows whose input replaces a token's embedding, after embed().
  virtual void add_positions(at::Tensor& /*x*/, const int32_t* /*replaced*/,
                             const int32_t* /*position*/) {}

  // Runs layers [from, to) of the rows, in place. Their keys and values go to the pool. loras: the
  // rows with LoRA adapters; only decoders have any.
  virtual void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
                   const Memory& memory, LoraGroups loras) = 0;

  // The keys and values of a layer alone: for rows whose outputs nothing reads. x: the layer's
  // inputs, which stay. REQUIRES: not an encoder.
  virtual void store_kv(int layer, const at::Tensor& x, const RowView& rows, const KvPool& pool,
                        LoraGroups loras) = 0;

  // Whether launches of embed(), run() and head() for one number of rows use the same addresses
  // until a buffer grows, so that they can be captured.
  virtual bool can_be_captured() const { return false; }

  // logits = head(final norm(hidden)). hidden: [n, hidden] as x; logits: [n, vocab] fp32.
  virtual void head(at::Tensor& logits, const at::Tensor& hidden, const cpu::Columns& columns) = 0;

  // out = final norm(hidden). Both [n, hidden], of the geometry's hidden_type.
  virtual void final_norm(at::Tensor& out, const at::Tensor& hidden) = 0;

  // The most rows of head() that do not unpack its weights.
  virtual int most_head_rows() const { return std::numeric_limits<int>::max(); }
};

}  // namespace tandem
