#include "engine/backend/torch/cuda/cuda_platform.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/stream.h"
#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/model/weight_matrix.h"
#include "engine/backend/torch/model/weight_store.h"
#include "engine/backend/torch/prompt_attention.h"
#include "engine/backend/torch/shared.h"
#include "engine/base/status.h"

namespace tandem::cuda {
namespace {

// Which devices read each other's memory: one clause for each device opened before this one.
std::string peers_of(int device, TorchShared& shared) {
  std::string peers;
  for (const int other : shared.devices_before(device)) {
    const bool reads = reads_memory_of(device, other);
    const bool is_read = reads_memory_of(other, device);
    absl::StrAppend(
        &peers, peers.empty() ? "" : "; ", "cuda:", device, " and cuda:", other, ": ",
        reads && is_read ? "each reads the other's memory" : "copies go through the host's memory");
  }
  return peers;
}

class CudaPlatform final : public Platform {
 public:
  const Ops& ops() const override { return cuda::ops(); }

  at::Device device(int index) const override {
    return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
  }
  absl::StatusOr<OpenedQueue> open_queue(int index, TorchShared& shared) const override {
    TANDEM_RETURN_IF_ERROR(check_device(index));
    OpenedQueue opened;
    opened.queue = cuda::open_queue(index);
    opened.peers = peers_of(index, shared);
    return opened;
  }
  int64_t free_bytes(int index) const override { return cuda::free_bytes(index); }
  void synchronize(int index) const override { cuda::synchronize(index); }
  int default_threads(int cores) const override { return std::min(cores, 4); }

  // cuBLAS sums in another order for another number of rows.
  bool batch_invariant() const override { return false; }
  absl::Status check_shape(const DecoderConfig& config) const override {
    return cuda::check_shape(config);
  }
  bool prefers_stored(const TensorSource& source, bool /*quantized_file*/) const override {
    return std::ranges::any_of(source.names(), [&](const std::string& name) {
      return source.find(name)->block != nullptr;
    });
  }
  absl::StatusOr<DType> weight_dtype(DType requested, SafeDType file) const override {
    if (requested == DType::kInt8) {
      return out_of_range("dtype", dtype_name(requested),
                          "auto, fp32, bf16, fp16, fp64, fp8, int4, q4_0, stored on CUDA");
    }
    if (requested != DType::kAuto) return requested;
    return file == SafeDType::kBF16  ? DType::kBFloat16
           : file == SafeDType::kF16 ? DType::kFloat16
                                     : DType::kFloat32;
  }
  absl::Status check_dtype(DType weights, int index) const override {
    return weights == DType::kFp8 ? check_fp8(index) : absl::OkStatus();
  }
  at::ScalarType row_type(DType weights) const override {
    switch (weights) {
      case DType::kFloat64:
        return at::kDouble;
      case DType::kFloat32:
        return at::kFloat;
      case DType::kFloat16:
        return at::kHalf;
      default:
        return at::kBFloat16;
    }
  }
  at::ScalarType embedding_type(DType weights, SafeDType /*file*/) const override {
    return row_type(weights);
  }
  absl::StatusOr<at::ScalarType> kv_type(DType requested, at::ScalarType rows) const override {
    const at::ScalarType type = requested == DType::kFloat32    ? at::kFloat
                                : requested == DType::kBFloat16 ? at::kBFloat16
                                                                : rows;
    if (type != rows) {
      return out_of_range("kv_dtype", type == at::kFloat ? "DTYPE_FP32" : "DTYPE_BF16",
                          "unset, or as dtype on CUDA");
    }
    return type;
  }

  absl::StatusOr<std::unique_ptr<WeightMatrix>> load_dense(const TensorSource& source,
                                                           const LinearSpec& spec,
                                                           const WeightStore& store,
                                                           cpu::Layout layout) const override {
    TANDEM_ASSIGN_OR_RETURN(at::Tensor weight,
                            load_matrix(source, spec, store.rows(), store.device));
    return make_matrix(std::move(weight), layout == cpu::Layout::kPairs, ops());
  }
  std::unique_ptr<WeightMatrix> load_blocks(cpu::QuantizedMatrix matrix, bool /*tokens*/,
                                            const WeightStore& store) const override {
    return make_matrix(matrix, store.device, store.rows(), ops());
  }

  bool keys_by_dimension() const override { return false; }
  bool takes_pieces(const KvGeometry& g) const override {
    return prompts_by_library(g.kv_type, g.head_dim);
  }
  int64_t prompt_bytes(const KvGeometry& g, int max_positions) const override {
    const auto element = static_cast<int64_t>(c10::elementSize(g.kv_type));
    return takes_pieces(g) ? gathered_bytes(g.kv_heads, g.head_dim, max_positions, element) : 0;
  }
  void move_rows(const RowMove* moves, int n, Store store, const KvPool& from,
                 const KvPool& to) const override {
    cuda::move_rows(moves, n, store, from, to);
  }
};

}  // namespace

const Platform& platform() {
  static const CudaPlatform kPlatform;
  return kPlatform;
}

}  // namespace tandem::cuda
