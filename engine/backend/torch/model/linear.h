// A linear layer, or several with one input side by side.
//
// On CPU the products are our own (cpu/product.h), of weights packed at load; rows between the
// layers are fp32 (fp64 for fp64 weights) whatever the weights are. On CUDA rows are of the
// weights' type, and the products are LibTorch's, or our own of few rows where weights are packed
// too. Weights in blocks of 4 to 8 bits stay so there; rows are bf16 then, and products of more
// rows than kMostBlockRows unpack a matrix for LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/cpu/product.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "engine/base/config.h"

namespace tandem {

// As what weights are kept, and where.
struct WeightStore {
  DType dtype = DType::kFloat32;  // not kAuto; on CUDA not kInt8
  at::Device device = at::kCPU;
  CpuKernels kernels = CpuKernels::kOwn;

  at::ScalarType rows() const;      // type of rows between linear layers, and of biases
  at::ScalarType residual() const;  // type of the residual stream and of norms
  const Ops& ops() const { return ops_of(device, kernels); }
  bool packed() const { return device.is_cpu() && kernels == CpuKernels::kOwn; }
};

// Rows that go into a linear layer: x, or its norm. The CPU's own products norm rows on the way.
struct LinearInput {
  const at::Tensor& x;           // [rows, in], of WeightStore::rows(); residual() if normed
  const Norm* norm = nullptr;    // [in], of residual(); null: none
  at::Tensor* normed = nullptr;  // scratch with a norm: [rows, in], of rows()

  LinearInput(const at::Tensor& rows) : x(rows) {}  // NOLINT(google-explicit-constructor)
  LinearInput(const at::Tensor& residual, const Norm& n, at::Tensor& scratch)
      : x(residual), norm(n.kind == NormKind::kNone ? nullptr : &n), normed(&scratch) {}
};

class Linear {
 public:
  Linear() = default;

  // layout: kPairs for gate_into(). Errors as load_matrix().
  static absl::StatusOr<Linear> load(const TensorSource& source, const WeightStore& store,
                                     const LinearSpec& spec,
                                     cpu::Layout layout = cpu::Layout::kInOrder);

  // out = x W^T + bias. x: [rows, in], out: [rows, out], of x's type or fp32, to which sums in fp32
  // are not rounded before
  // first: only the first so many columns of out are wanted; 0: all. The CPU's own products then
  // read no more of W.
  void into(at::Tensor& out, const LinearInput& x, int64_t first = 0) const;

  // residual += x W^T + bias. residual: [rows, out]; scratch: the same of x's type, used on CUDA
  // where residual has another.
  void add_to(at::Tensor& residual, const LinearInput& x, at::Tensor& scratch) const;

  // out = act(x W^T + bias)
  void activate_into(at::Tensor& out, const LinearInput& x, Activation activation) const;

  // out = act(first half of y) * second half of y = x W^T + bias. out: [rows, out / 2]
  // scratch: [rows, out], used but by the CPU's own products.
  void gate_into(at::Tensor& out, const LinearInput& x, Activation activation,
                 RowBuffer& scratch) const;

  // to[r] = W[row[r]] where row[r] >= 0: the embedding that is tied to a packed head.
  // to: [rows, in] of WeightStore::residual()
  void look_up(at::Tensor& to, const int32_t* row) const;

  // A second copy of the weights, for Ops::packed_product() and up to kMostPackedRows rows.
  // Bytes that it takes; 0: there is no such product for them.
  int64_t packed_bytes() const;
  void pack();

  // Rows that a product has at most without a copy of the weights as numbers, which of a head for
  // 152,000 tokens is 1 GB.
  int most_rows() const;

  const at::Tensor& weight() const { return weight_; }  // undefined where it is packed or in blocks
  int64_t in() const;
  int64_t outs() const;
  int64_t parameters() const;
  int64_t bytes() const;  // without the second copy
  // Of DType::kStored: of weights that the file has in blocks, which these here are not.
  int64_t expanded_bytes() const { return expanded_ ? bytes() : 0; }

 private:
  void product(at::Tensor& out, const LinearInput& x, cpu::Then then,
               Activation activation = Activation::kSilu, int64_t first = 0) const;
  // Whether that is a product for Ops::packed_product() or block_product(), which then has been
  // made.
  bool few_rows(at::Tensor& out, const LinearInput& x, ProductThen then,
                Activation activation = Activation::kSilu, int64_t first = 0) const;
  bool is_packed() const { return !packed_.empty() || !quantized_.empty(); }
  // weight_, or what blocks say, of rows' type.
  at::Tensor numbers() const;
  // The input's rows, for products that know of no norms.
  const at::Tensor& rows(const LinearInput& x) const;

  const Ops* ops_ = nullptr;
  cpu::PackedMatrix packed_;
  cpu::QuantizedMatrix quantized_;   // instead, of DType::kStored and kInt4
  at::Tensor weight_;                // [out, in], where it is not packed
  at::Tensor tiles_;                 // the same as Ops::pack() has it, or undefined
  std::vector<BlockMatrix> blocks_;  // instead of weight_, where the device multiplies blocks
  at::ScalarType rows_ = at::kFloat;
  bool expanded_ = false;
  bool pairs_ = false;  // for gate_into()
  at::Tensor bias_;     // [out] or undefined
};

}  // namespace tandem
