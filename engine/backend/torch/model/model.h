// What the executor needs of a model: embed rows, run layers, apply the head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/row_view.h"
#include "engine/pass/backend.h"

namespace tandem {

// What rows read through cross-attention: cache rows of an encoder, all dense, and where they lie.
struct Memory {
  RowView rows;
  const KvPool* pool = nullptr;  // null: rows read none
};

// Used by one device queue thread, under InferenceMode. May throw what LibTorch throws.
class Model {
 public:
  virtual ~Model() = default;

  virtual const KvGeometry& geometry() const = 0;
  // All but the page sizes, which depend on the rows of a page.
  virtual const ModelShape& shape() const = 0;

  // x[r] = embedding of token[r] at position[r], for rows with token[r] >= 0. x: [rows, hidden], of
  // the geometry's hidden_type; token, position: on the model's device. Positions up to
  // max_position may follow in run().
  virtual void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
                     int max_position) = 0;

  // x[r] += what the model knows of position[r], for rows with fed[r] >= 0: those that were fed
  // with something else than a token's embedding, after embed().
  virtual void place_fed(at::Tensor& /*x*/, const int32_t* /*fed*/, const int32_t* /*position*/) {}

  // Layers [from, to) of the rows, in place; their keys and values go to the pool.
  virtual void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
                   const Memory& memory) = 0;

  // Whether what embed(), run() and head() launch for as many rows names the same places whenever
  // nothing has grown since, so that it may be captured.
  virtual bool can_be_captured() const { return false; }

  // logits = head(final norm(hidden)). hidden: [n, hidden] as x, logits: [n, vocab] fp32, of which
  // the first `ids` columns are wanted
  virtual void head(at::Tensor& logits, const at::Tensor& hidden, int ids) = 0;

  // Rows that head() takes at a time without making a second copy of its weights.
  virtual int most_head_rows() const { return std::numeric_limits<int>::max(); }
};

}  // namespace tandem
