// A decoder whose layers are split over several CPU devices (pipeline stages).
//
// The rows of a batch run through the first device's layers, then the second's, and so on. The
// first device also has the embedding and the heads. All devices use one pool: a page holds its
// rows for all layers, and each device reads and writes only its own layers. Any pass (a prefill, a
// tree, rows that stop at a layer and continue later) therefore gives the same result as on one
// device, bit for bit with batch-invariant kernels.
//
// Each shard runs on its own thread, with the device's team, while the device queue waits: a batch
// is on one device at a time. CPU devices share the host's memory, so no data is copied.
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
  // Loads each shard's weights on its team, as DecoderWeights::load(). REQUIRES: ends ascend, the
  // last is config.layers; no encoder
  static absl::StatusOr<std::unique_ptr<ShardedDecoder>> load(
      const std::string& name, const DecoderConfig& config, bool tied, const TensorSource& source,
      const WeightStore& store, at::ScalarType kv_type, const std::vector<LayerShard>& shards);

  // Of the first shard, with the embedding and the heads.
  const std::shared_ptr<const DecoderWeights>& weights() const { return parts_.front().weights; }

  const KvGeometry& geometry() const override { return parts_.front().decoder->geometry(); }
  const ModelShape& shape() const override { return shape_; }
  void embed(at::Tensor& x, const int32_t* token, const int32_t* position,
             int max_position) override;
  void add_positions(at::Tensor& x, const int32_t* replaced, const int32_t* position) override;
  void run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
           const Memory& memory, LoraGroups loras) override;
  void store_kv(int layer, const at::Tensor& x, const RowView& rows, const KvPool& pool,
                LoraGroups loras) override;
  void head(at::Tensor& logits, const at::Tensor& hidden, const cpu::Columns& columns) override;
  void final_norm(at::Tensor& out, const at::Tensor& hidden) override;

 private:
  struct Part {
    int begin = 0, end = 0;  // layers
    std::shared_ptr<const DecoderWeights> weights;
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<Worker> thread;  // null: the device queue's thread
    // Runs f on the part's thread, and rethrows its exceptions.
    void call(absl::FunctionRef<void()> f) const;
  };
  ShardedDecoder() = default;

  std::vector<Part> parts_;
  ModelShape shape_;
};

}  // namespace tandem
