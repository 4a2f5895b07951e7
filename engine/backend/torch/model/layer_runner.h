// The layers of one stack, a decoder's or an encoder's, one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/decoder_weights.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_config.h"

namespace tandem {

// Keys and values of one layer, and the rows that read them.
struct SeenKv {
  const RowView& rows;
  LayerKv kv;
};

class LayerRunner {
 public:
  LayerRunner(const DecoderConfig& config, const WeightStore& store);

  // To be called before a batch with positions up to this one.
  void reach(int max_position);

  // Layer i, whose weights are l, of x: [rows, hidden], in place. own: where its keys and values
  // go, and what each row sees of them; memory: what it sees of an encoder's; null: it has none.
  void run(int i, const DecoderWeights::Layer& l, const DistanceBias& distances, at::Tensor& x,
           const SeenKv& own, const SeenKv* memory);

 private:
  void attend(const DecoderWeights::Layer& l, const DistanceBias& distances, at::Tensor& x,
              const SeenKv& own, const Rope& rope);
  void attend_memory(const DecoderWeights::Layer& l, at::Tensor& x, const SeenKv& memory);
  // inner_ = all of the MLP but its last product
  void feed_forward(const DecoderWeights::Layer& l, const at::Tensor& x);
  // x += norm(linear(input))
  void add_output(at::Tensor& x, const Linear& linear, const at::Tensor& input, const Norm& norm);

  const DecoderConfig config_;
  const Ops& ops_;
  double scale_ = 0;  // of attention's scores
  Rope rope_;
  Rope local_rope_;  // of layers with a window, where it is another
  // Activations between the products of a layer, by rows.
  RowBuffer normed_;     // [rows, hidden]
  RowBuffer qkv_;        // [rows, (heads + 2 kv_heads) * head_dim]
  RowBuffer query_;      // [rows, heads * head_dim], of cross-attention
  RowBuffer attended_;   // [rows, heads * head_dim]
  RowBuffer gate_up_;    // [rows, 2 * intermediate]
  RowBuffer inner_;      // [rows, intermediate]
  RowBuffer projected_;  // [rows, hidden]
};

}  // namespace tandem
