#include "engine/backend/torch/model/sharded_decoder.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/base/status.h"

namespace tandem {

void ShardedDecoder::Part::call(absl::FunctionRef<void()> f) const {
  if (!thread) return f();
  std::promise<void> done;
  std::future<void> result = done.get_future();
  thread->post([f, done = std::move(done)]() mutable {
    try {
      f();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  result.get();
}

absl::StatusOr<std::unique_ptr<ShardedDecoder>> ShardedDecoder::load(
    const std::string& name, const DecoderConfig& config, bool tied, const TensorSource& source,
    const WeightStore& store, at::ScalarType kv_type, const std::vector<LayerShard>& shards) {
  auto model = std::unique_ptr<ShardedDecoder>(new ShardedDecoder());
  int begin = 0;
  for (const LayerShard& shard : shards) {
    Part& part = model->parts_.emplace_back();
    part.begin = std::exchange(begin, shard.end);
    part.end = shard.end;
    if (part.begin > 0) {
      const auto around = [shard](const auto& work) {
        const c10::InferenceMode inference;
        cpu::set_team_size(shard.threads, shard.first_cpu);
        work();
      };
      part.thread = std::make_unique<Worker>(1, around, "a part of a model");
    }
    absl::Status status;
    part.call([&] {
      absl::StatusOr<DecoderWeights> own =
          DecoderWeights::load(config, tied, source, store, {part.begin, part.end});
      status = own.status();
      if (!own.ok()) return;
      part.weights = std::make_shared<const DecoderWeights>(*std::move(own));
      part.decoder = std::make_unique<Decoder>(name, config, part.weights, kv_type);
    });
    TANDEM_RETURN_IF_ERROR(status);
    const ModelShape& shape = part.decoder->shape();
    if (part.begin == 0) {
      model->shape_ = shape;
    } else {
      model->shape_.weight_bytes += shape.weight_bytes;
      model->shape_.parameters += shape.parameters;
    }
  }
  return model;
}

void ShardedDecoder::embed(at::Tensor& x, const int32_t* token, const int32_t* position,
                           int max_position) {
  parts_.front().decoder->embed(x, token, position, max_position);
  for (Part& part : parts_) part.decoder->reach(max_position);
}

void ShardedDecoder::add_positions(at::Tensor& x, const int32_t* replaced,
                                   const int32_t* position) {
  parts_.front().decoder->add_positions(x, replaced, position);
}

void ShardedDecoder::run(int from, int to, at::Tensor& x, const RowView& rows, const KvPool& pool,
                         const Memory& memory, LoraGroups loras) {
  for (Part& part : parts_) {
    const int first = std::max(from, part.begin), end = std::min(to, part.end);
    if (first >= end) continue;
    part.call([&] { part.decoder->run(first, end, x, rows, pool, memory, loras); });
  }
}

void ShardedDecoder::store_kv(int layer, const at::Tensor& x, const RowView& rows,
                              const KvPool& pool, LoraGroups loras) {
  for (Part& part : parts_) {
    if (layer < part.begin || layer >= part.end) continue;
    part.call([&] { part.decoder->store_kv(layer, x, rows, pool, loras); });
  }
}

void ShardedDecoder::head(at::Tensor& logits, const at::Tensor& hidden,
                          const cpu::Columns& columns) {
  parts_.front().decoder->head(logits, hidden, columns);
}

void ShardedDecoder::final_norm(at::Tensor& out, const at::Tensor& hidden) {
  parts_.front().decoder->final_norm(out, hidden);
}

}  // namespace tandem
