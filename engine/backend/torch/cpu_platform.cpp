// CPUs as platforms: with the kernels of cpu/, and in LibTorch's operators.
#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/memory.h"
#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/model/weight_matrix.h"
#include "engine/backend/torch/model/weight_store.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/platform.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

cpu::WeightType weight_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return cpu::WeightType::kBFloat16;
    case DType::kFloat16:
      return cpu::WeightType::kHalf;
    case DType::kInt8:
    case DType::kInt4:  // of inputs that are not a multiple of a block
    case DType::kQ40:
      return cpu::WeightType::kInt8;
    case DType::kFloat64:
      return cpu::WeightType::kDouble;
    default:
      return cpu::WeightType::kFloat;
  }
}

// The numbers of a packed matrix, in the type of its products.
at::Tensor unpacked(const cpu::PackedMatrix& m) {
  const bool exact = m.type() == cpu::WeightType::kDouble;
  at::Tensor all = at::empty({m.outs(), m.in()}, exact ? at::kDouble : at::kFloat);
  for (int64_t r = 0; r < m.outs(); ++r) {
    if (exact) {
      m.unpack(r, static_cast<double*>(all.mutable_data_ptr()) + r * m.in());
    } else {
      m.unpack(r, static_cast<float*>(all.mutable_data_ptr()) + r * m.in());
    }
  }
  return all;
}

// Moves rows in the host's memory. from and to may overlap within a page.
void move_run(const RowMove& m, Store store, const KvPool& from, const KvPool& to) {
  const auto bytes_of = [](at::ScalarType t) { return static_cast<int64_t>(c10::elementSize(t)); };
  if (store == Store::kFrontier) {
    const int64_t row = from.geometry.hidden_size * bytes_of(from.geometry.hidden_type);
    const auto* f = static_cast<const std::byte*>(from.frontier.const_data_ptr());
    auto* t = static_cast<std::byte*>(to.frontier.mutable_data_ptr());
    std::memmove(t + (m.to_page * to.size.page_rows + m.to_slot) * row,
                 f + (m.from_page * from.size.page_rows + m.from_slot) * row,
                 static_cast<size_t>(m.rows * row));
    return;
  }
  const KvGeometry& g = to.geometry;
  const int64_t element = bytes_of(g.kv_type);
  const auto block = [&](const KvPool& pool, bool keys, int64_t of, int64_t layer, int64_t head) {
    const int64_t page = layer * pool.pages() + of;
    return static_cast<std::byte*>((keys ? pool.keys : pool.values).mutable_data_ptr()) +
           (page * g.kv_heads + head) * pool.size.page_rows * g.head_dim * element;
  };
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    for (int64_t head = 0; head < g.kv_heads; ++head) {
      const int64_t row = g.head_dim * element;
      std::memmove(block(to, false, m.to_page, layer, head) + m.to_slot * row,
                   block(from, false, m.from_page, layer, head) + m.from_slot * row,
                   static_cast<size_t>(m.rows * row));
      // Keys are stored by dimension.
      const int64_t from_row = from.size.page_rows * element;
      const int64_t to_row = to.size.page_rows * element;
      const std::byte* f = block(from, true, m.from_page, layer, head) + m.from_slot * element;
      std::byte* t = block(to, true, m.to_page, layer, head) + m.to_slot * element;
      for (int i = 0; i < g.head_dim; ++i, f += from_row, t += to_row) {
        std::memmove(t, f, static_cast<size_t>(m.rows * element));
      }
    }
  }
}

class CpuPlatform : public Platform {
 public:
  const Ops& ops() const override { return cpu_ops(); }

  at::Device device(int /*index*/) const final { return at::kCPU; }
  absl::StatusOr<OpenedQueue> open_queue(int /*index*/, TorchShared& /*shared*/) const final {
    return OpenedQueue();
  }
  int64_t free_bytes(int /*index*/) const final { return free_host_bytes(); }
  void synchronize(int /*index*/) const final {}
  int default_threads(int cores) const final { return cores; }

  bool batch_invariant() const override { return true; }
  absl::Status check_shape(const DecoderConfig& /*config*/) const final { return absl::OkStatus(); }
  bool prefers_stored(const TensorSource& /*source*/, bool quantized_file) const override {
    return quantized_file;
  }
  absl::StatusOr<DType> weight_dtype(DType requested, SafeDType /*file*/) const override {
    if (requested == DType::kFp8) {
      return out_of_range("dtype", dtype_name(requested),
                          "auto, fp32, bf16, fp16, fp64, int8, int4, q4_0, stored on a CPU");
    }
    return requested == DType::kAuto ? DType::kFloat32 : requested;
  }
  at::ScalarType row_type(DType weights) const final {
    return weights == DType::kFloat64 ? at::kDouble : at::kFloat;
  }
  // Int8, int4 and q4_0 are types of products: an embedding keeps the type in the file.
  at::ScalarType embedding_type(DType weights, SafeDType file) const final {
    switch (weights) {
      case DType::kBFloat16:
        return at::kBFloat16;
      case DType::kFloat16:
        return at::kHalf;
      case DType::kInt8:
      case DType::kInt4:
      case DType::kQ40:
        return file == SafeDType::kBF16  ? at::kBFloat16
               : file == SafeDType::kF16 ? at::kHalf
                                         : at::kFloat;
      default:
        return row_type(weights);
    }
  }
  absl::StatusOr<at::ScalarType> kv_type(DType requested, at::ScalarType rows) const final {
    const at::ScalarType type = requested == DType::kFloat32    ? at::kFloat
                                : requested == DType::kBFloat16 ? at::kBFloat16
                                                                : rows;
    if (rows == at::kDouble && type != rows) {
      return out_of_range("kv_dtype", type == at::kFloat ? "DTYPE_FP32" : "DTYPE_BF16",
                          "unset with DTYPE_FP64");
    }
    return type;
  }

  absl::StatusOr<std::unique_ptr<WeightMatrix>> load_dense(const TensorSource& source,
                                                           const LinearSpec& spec,
                                                           const WeightStore& store,
                                                           cpu::Layout layout) const override {
    TANDEM_ASSIGN_OR_RETURN(cpu::PackedMatrix packed,
                            load_packed(source, spec, weight_type(store.dtype), layout));
    return make_matrix(std::move(packed), ops());
  }
  std::unique_ptr<WeightMatrix> load_blocks(cpu::QuantizedMatrix matrix, bool tokens,
                                            const WeightStore& /*store*/) const override {
    return make_matrix(std::move(matrix), tokens, ops());
  }

  bool keys_by_dimension() const final { return true; }
  void move_rows(const RowMove* moves, int n, Store store, const KvPool& from,
                 const KvPool& to) const final {
    for (int i = 0; i < n; ++i) move_run(moves[i], store, from, to);
  }
};

class AtenPlatform final : public CpuPlatform {
 public:
  const Ops& ops() const override { return aten_ops(); }
  // Libraries sum in another order for another number of rows.
  bool batch_invariant() const override { return false; }
  bool prefers_stored(const TensorSource& /*source*/, bool /*quantized_file*/) const override {
    return false;
  }
  // Fp8, too: the reference for CUDA's.
  absl::StatusOr<DType> weight_dtype(DType requested, SafeDType /*file*/) const override {
    return requested == DType::kAuto ? DType::kFloat32 : requested;
  }

  absl::StatusOr<std::unique_ptr<WeightMatrix>> load_dense(const TensorSource& source,
                                                           const LinearSpec& spec,
                                                           const WeightStore& store,
                                                           cpu::Layout layout) const override {
    // Packed first, so that the numbers are rounded as for the CPU's own products.
    TANDEM_ASSIGN_OR_RETURN(const cpu::PackedMatrix packed,
                            load_packed(source, spec, weight_type(store.dtype)));
    return make_matrix(unpacked(packed), layout == cpu::Layout::kPairs, ops());
  }
  std::unique_ptr<WeightMatrix> load_blocks(cpu::QuantizedMatrix matrix, bool /*tokens*/,
                                            const WeightStore& store) const override {
    return make_matrix(matrix, store.device, store.rows(), ops());
  }
};

}  // namespace

const Platform& cpu_platform() {
  static const CpuPlatform kPlatform;
  return kPlatform;
}

const Platform& aten_platform() {
  static const AtenPlatform kPlatform;
  return kPlatform;
}

}  // namespace tandem
