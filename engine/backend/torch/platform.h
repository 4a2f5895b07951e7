// A kind of device: the CPU with this project's kernels, the CPU in LibTorch's operators, or CUDA.
//
// Everything that differs between them is behind this interface. The CPU's implementations are in
// cpu_platform.cpp, CUDA's is in cuda/; platforms.cpp lists them. Platforms are constant,
// thread-safe and live as long as the process. Errors of a device are thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/quantized_matrix.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/row_move.h"
#include "engine/backend/torch/weights/decoder_config.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "engine/base/config.h"
#include "engine/pass/backend.h"

namespace tandem {

struct KvGeometry;
struct KvPool;
struct Ops;
struct WeightStore;
class WeightMatrix;
class TorchShared;

// The command queue of one device queue.
struct OpenedQueue {
  std::unique_ptr<Queue> queue;  // null: a CPU device, which runs everything at once
  std::string peers;             // a line on access to other devices' memory; "": no other device
};

class Platform {
 public:
  virtual ~Platform() = default;
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  virtual const Ops& ops() const = 0;

  // --- Devices. index: DeviceConfig::index

  virtual at::Device device(int index) const = 0;
  // Makes the device's context, if it has one. NOT_FOUND: no such device. FAILED_PRECONDITION: a
  // device or driver that this build does not support.
  virtual absl::StatusOr<OpenedQueue> open_queue(int index, TorchShared& shared) const = 0;
  virtual int64_t free_bytes(int index) const = 0;
  // Returns when all work on the device is done.
  virtual void synchronize(int index) const = 0;
  // Host threads of a device queue whose configuration names none. cores: of the machine
  virtual int default_threads(int cores) const = 0;

  // --- Models

  // ModelShape::batch_invariant
  virtual bool batch_invariant() const = 0;
  // INVALID_ARGUMENT: a shape that the kernels do not support.
  virtual absl::Status check_shape(const DecoderConfig& config) const = 0;
  // Whether DType::kAuto means DType::kStored. quantized_file: a GGUF file or packed integers
  virtual bool prefers_stored(const TensorSource& source, bool quantized_file) const = 0;
  // The type that weights are held in. file: the type in the checkpoint. INVALID_ARGUMENT: a type
  // that the platform does not support.
  virtual absl::StatusOr<DType> weight_dtype(DType requested, SafeDType file) const = 0;
  // FAILED_PRECONDITION: device `index` has no products for weights of this type.
  virtual absl::Status check_dtype(DType /*weights*/, int /*index*/) const {
    return absl::OkStatus();
  }
  // Rows between linear layers, and biases.
  virtual at::ScalarType row_type(DType weights) const = 0;
  // An embedding that is not tied to a head.
  virtual at::ScalarType embedding_type(DType weights, SafeDType file) const = 0;
  // Keys and values. rows: row_type(). INVALID_ARGUMENT: a type that the platform does not support.
  virtual absl::StatusOr<at::ScalarType> kv_type(DType requested, at::ScalarType rows) const = 0;

  // --- Matrices

  // One matrix from the tensors of `source`. Errors as load_matrix().
  virtual absl::StatusOr<std::unique_ptr<WeightMatrix>> load_dense(const TensorSource& source,
                                                                   const LinearSpec& spec,
                                                                   const WeightStore& store,
                                                                   cpu::Layout layout) const = 0;
  // One matrix in blocks of 4 to 8 bits. tokens: LinearSpec::tokens. REQUIRES: not empty
  virtual std::unique_ptr<WeightMatrix> load_blocks(cpu::QuantizedMatrix matrix, bool tokens,
                                                    const WeightStore& store) const = 0;

  // --- KV pools

  // Whether a page holds its keys as [head_dim, page_rows] (cpu/kv.h) instead of [page_rows,
  // head_dim].
  virtual bool keys_by_dimension() const = 0;
  // Whether attention of such a model reads RowView::pieces. Their steps are not replayed.
  virtual bool takes_pieces(const KvGeometry& /*geometry*/) const { return false; }
  // Device memory that the attention of prompts takes for keys and values besides the pool.
  // max_positions: of the model
  virtual int64_t prompt_bytes(const KvGeometry& /*geometry*/, int /*max_positions*/) const {
    return 0;
  }
  // Moves `n` runs of rows, in order, into a pool of this platform. moves: in the memory of the
  // pool's device; from: a pool whose memory this device can read, or `to` itself.
  virtual void move_rows(const RowMove* moves, int n, Store store, const KvPool& from,
                         const KvPool& to) const = 0;

 protected:
  Platform() = default;
};

const Platform& cpu_platform();   // the kernels of cpu/
const Platform& aten_platform();  // a CPU in LibTorch's operators: slow, a reference

// NOT_FOUND: this build has no such platform.
absl::StatusOr<const Platform*> find_platform(const DeviceConfig& config);

// The platform of tensors on `device`, on a CPU with these kernels. Throws if this build has none.
const Platform& platform_of(at::Device device, CpuKernels kernels = CpuKernels::kOwn);

}  // namespace tandem
