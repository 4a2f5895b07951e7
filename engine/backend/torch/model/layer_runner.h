// Runs the layers of a decoder or an encoder.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/decoder_weights.h"
#include "engine/backend/torch/model/lora.h"
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

  // REQUIRES: called before a batch with positions up to max_position
  void reach(int max_position);

  // Runs layer i with weights l on x, [rows, hidden], in place. own: the cache of its keys and
  // values, and the rows' view of it. memory: the rows' view of an encoder's; null: no
  // cross-attention. loras: the rows with LoRA adapters.
  void run(int i, const DecoderWeights::Layer& l, const DistanceBias& distances, at::Tensor& x,
           const SeenKv& own, const SeenKv* memory, LoraGroups loras);
  // The keys and values of layer i alone. x stays.
  void store_kv(int i, const DecoderWeights::Layer& l, const at::Tensor& x, const SeenKv& own,
                LoraGroups loras);

 private:
  // The adapters of a layer's rows.
  struct Adapted {
    int layer = 0;
    LoraGroups groups;
  };
  const Rope& rope_of(int layer) const;
  // Returns q, k and v of the rows, and stores k and v.
  at::Tensor& project_qkv(const DecoderWeights::Layer& l, const at::Tensor& x, const SeenKv& own,
                          const Adapted& adapted);
  void attend(const DecoderWeights::Layer& l, const DistanceBias& distances, at::Tensor& x,
              const SeenKv& own, const Adapted& adapted);
  void attend_memory(const DecoderWeights::Layer& l, at::Tensor& x, const SeenKv& memory);
  // inner_ = the MLP without its down projection
  void feed_forward(const DecoderWeights::Layer& l, const at::Tensor& x, const Adapted& adapted);
  // x += norm(linear(input))
  void add_output(at::Tensor& x, const Linear& linear, const at::Tensor& input, const Norm& norm,
                  LoraPart part, const Adapted& adapted);
  // As LoraProducts::read_ahead(), for the product of a part.
  void read_ahead(const DecoderWeights::Layer& l, LoraPart part, const Adapted& adapted) const;

  const DecoderConfig config_;
  const Ops& ops_;
  double scale_ = 0;  // of attention scores
  Rope rope_;
  Rope local_rope_;  // of layers with a window, if it differs
  // Activations between the products of a layer, by rows.
  RowBuffer normed_;     // [rows, hidden]
  RowBuffer qkv_;        // [rows, (heads + 2 kv_heads) * head_dim]
  RowBuffer query_;      // [rows, heads * head_dim], of cross-attention
  RowBuffer attended_;   // [rows, heads * head_dim]
  RowBuffer gate_up_;    // [rows, 2 * intermediate]
  RowBuffer inner_;      // [rows, intermediate]
  RowBuffer projected_;  // [rows, hidden]
  LoraProducts lora_;
};

}  // namespace tandem
