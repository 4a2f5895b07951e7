// A decoder whose layers lie on several devices, one range behind the other.
//
// The rows of a batch go through the first device's layers, then through the second's, and so on;
// what lies before and behind the layers (embedding, heads) is with the first. All devices see one
// pool: a page holds its rows for all layers, each device's part of which is written and read by
// that device alone. So whatever a pass is (a prefill, a tree, rows that stop between two layers
// and go on later), it is the same as on one device, bit for bit where kernels keep rows' bits.
//
// A device's part runs on a thread of its own with the device's team, while the device queue waits:
// a batch is on one device at a time. CPU devices only, which share the host's memory; so nothing
// of a batch but its rows need be moved.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/async/worker.h"
#include "engine/backend/torch/layer_shard.h"
#include "engine/backend/torch/model/decoder.h"
#include "engine/backend/torch/model/model.h"

namespace tandem {

class ShardedDecoder final : public Model {
 public:
  // Loads the weights of each shard on its team, as DecoderWeights::load(). REQUIRES: ends ascend,
  // the last one is config.layers; no encoder.
  static absl::StatusOr<std::unique_ptr<ShardedDecoder>> load(
      const std::string& name, const DecoderConfig& config, bool tied, const TensorSource& source,
      const WeightStore& store, at::ScalarType kv_type, const std::vector<LayerShard>& shards);

  // Of the first shard: with what lies before and behind the layers.
  const std::shared_ptr<const DecoderWeights>& weights() const { return parts_.front().weights; }

  const KvGeometry& geometry() const override { return parts_.front().decoder->geometry(); }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
             int max_position) override;
  void add_positions(at::Tensor& x, const int32_t* replaced, const int32_t* position) override;
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
           const Memory& memory) override;
  void head(at::Tensor& logits, const at::Tensor& hidden, int ids) override;

 private:
  struct Part {
    int begin = 0, end = 0;  // layers
    std::shared_ptr<const DecoderWeights> weights;
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<Worker> thread;  // null: the device queue itself
    // On the part's thread, whose exceptions come back.
    void call(absl::FunctionRef<void()> f) const;
  };
  ShardedDecoder() = default;

  std::vector<Part> parts_;
  ModelShape shape_;
};

}  // namespace tandem
