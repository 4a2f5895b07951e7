// LoRA adapters of a decoder: low-rank additions y += scale * B (A x) to its linear layers, for
// those rows of a batch that have an adapter.
//
// Sums are fp32 (fp64 with fp64 weights) for any type of the base weights. An addition is the last
// summand of a number, so rows without an adapter keep their bits. A row's addition depends on that
// row and its adapter alone.
//
// There are two ways. With Ops::add_lora, kernels find the matrices of each row's adapter by
// address (LoraView); the host does nothing for a batch but write these addresses. Without it, on
// CPUs, kernels get the rows of each adapter (LoraGroup), and matrices may have 16 bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/low_rank.h"
#include "engine/backend/torch/cpu/weight_memory.h"
#include "engine/backend/torch/lora_view.h"
#include "engine/backend/torch/model/weight_store.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/lora_file.h"

namespace tandem {

class LoraWeights {
 public:
  // The additions to the first config.layers layers. store: of the base model. dtype: as
  // ModelConfig::adapter_dtype. Errors as load_rows().
  static absl::StatusOr<LoraWeights> load(const LoraFile& file, const DecoderConfig& config,
                                          WeightStore store, DType dtype = DType::kAuto);

  // Null: the adapter does not change the layer.
  const cpu::LowRankLayer* find(int layer, LoraPart part) const {
    const auto& found = layers_[static_cast<size_t>(layer)][static_cast<size_t>(part)];
    return found.a == nullptr ? nullptr : &found;
  }
  // Without Ops::add_lora: the numbers between two places, in layers: 3.5 is the middle of layer 3.
  std::span<const std::byte> between(double from, double to) const;
  int64_t bytes() const;
  // The bytes() that load() gives, without reading numbers.
  static int64_t bytes_of(const LoraFile& file, const DecoderConfig& config,
                          const WeightStore& store, DType dtype = DType::kAuto);

  // For Ops::add_lora: as LoraColumns. Null: the platform has no such operation.
  const LoraLayer* for_kernels() const {
    return static_cast<const LoraLayer*>(table_.defined() ? table_.const_data_ptr() : nullptr);
  }
  int rank() const { return rank_; }         // the largest of a matrix
  uint32_t parts() const { return parts_; }  // bit p: LoraPart p of some layer is changed

 private:
  absl::Status load_for_cpu(const LoraFile& file, const DecoderConfig& config,
                            const WeightStore& store, DType dtype);
  absl::Status load_for_kernels(const LoraFile& file, const DecoderConfig& config,
                                const WeightStore& store);

  int rank_ = 0;
  uint32_t parts_ = 0;
  // Without Ops::add_lora: by layer and part, without A if it is not changed; and its numbers.
  std::vector<std::array<cpu::LowRankLayer, kLoraParts>> layers_;
  cpu::WeightMemory memory_;
  int64_t memory_bytes_ = 0;
  std::vector<int64_t> first_byte_;  // of each layer, and the end
  // With it, in the memory of the device. LoraLayer [layers * kLoraParts] as bytes, and what it
  // refers to.
  at::Tensor table_;
  std::vector<at::Tensor> numbers_;
};

// The rows that one adapter changes.
struct LoraGroup {
  const LoraWeights* weights = nullptr;
  const int64_t* rows = nullptr;  // [n], ascending
  int64_t n = 0;
};

// The rows of a batch that adapters change, in the form that the platform needs.
struct LoraGroups {
  LoraGroups() = default;
  template <std::convertible_to<std::span<const LoraGroup>> Groups>
  LoraGroups(const Groups& all) : groups(all) {}  // NOLINT(google-explicit-constructor)
  LoraGroups(const LoraView& for_kernels) : view(for_kernels) {}  // NOLINT: the same

  bool empty() const { return groups.empty() && view.rank == 0; }

  std::span<const LoraGroup> groups;  // without Ops::add_lora; a row is in one at most
  LoraView view;                      // with it
};

// The additions of one model, with the memory that they need. Used by one thread.
class LoraProducts {
 public:
  explicit LoraProducts(const WeightStore& store);

  // Makes the next product prefetch numbers that additions read soon after it. from, to: the part
  // of the layer's work that the product does, within [0, 1]
  void read_ahead(const LoraGroups& groups, int layer, double from, double to) const;

  // to += the additions of `groups` for x. to: [rows, outs] of x's type, with Ops::add_lora also of
  // the residual stream's
  void add(at::Tensor& to, const LinearInput& x, const LoraGroups& groups, int layer,
           LoraPart part);

  // The additions themselves, until the next call; null: there are none.
  const AddedRows* sums(const LinearInput& x, const LoraGroups& groups, int layer, LoraPart part,
                        int64_t outs);

 private:
  // A tensor that grows with use.
  class Buffer {
   public:
    at::Tensor view(int64_t rows, int64_t width, const at::TensorOptions& options);

   private:
    at::Tensor all_;
  };

  // By Ops::add_lora. False: the adapters do not change the part.
  bool add_by_kernels(at::Tensor& to, const LinearInput& x, const LoraView& view, int layer,
                      LoraPart part, bool add);

  // The groups whose adapters change the part, with their additions to it.
  std::span<const cpu::LowRankRows> rows_of(std::span<const LoraGroup> groups, int layer,
                                            LoraPart part);

  const Ops& ops_;
  const at::TensorOptions type_;
  Buffer ranks_, sums_;
  std::vector<cpu::LowRankRows> rows_;
  at::Tensor sums_view_;
  std::vector<int32_t> sums_row_;
  std::optional<AddedRows> added_;
};

}  // namespace tandem
