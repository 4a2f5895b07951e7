// A linear layer: a weight matrix and a bias. Also several layers with one input, stacked.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/torch/cpu/columns.h"
#include "engine/backend/torch/cpu/packed_matrix.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/weight_matrix.h"
#include "engine/backend/torch/model/weight_store.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/weights/decoder_layout.h"
#include "engine/backend/torch/weights/tensor_source.h"

namespace tandem {

class Linear {
 public:
  Linear() = default;  // empty: only the sizes may be read, and are 0

  // layout: kPairs for gate_into(). Errors as load_matrix().
  static absl::StatusOr<Linear> load(const TensorSource& source, const WeightStore& store,
                                     const LinearSpec& spec,
                                     cpu::Layout layout = cpu::Layout::kInOrder);

  // out = x W^T + bias. x: [rows, in]; out: [rows, out], of x's type or fp32; fp32 sums are not
  // rounded to x's type first.
  void into(at::Tensor& out, const LinearInput& x, const cpu::Columns& columns = {}) const;

  // residual += x W^T + bias. residual: [rows, out]; scratch: the same of x's type, used on CUDA if
  // residual has another type.
  void add_to(at::Tensor& residual, const LinearInput& x, at::Tensor& scratch) const;

  // out = act(x W^T + bias)
  void activate_into(at::Tensor& out, const LinearInput& x, Activation activation) const;

  // out = act(first half of y) * second half of y = x W^T + bias + added. out: [rows, out / 2]
  // scratch: [rows, out], not used by the CPU's own products. added: null: none
  void gate_into(at::Tensor& out, const LinearInput& x, Activation activation, RowBuffer& scratch,
                 const AddedRows* added = nullptr) const;

  // to[r] = W[row[r]] if row[r] >= 0. to: [rows, in] of WeightStore::residual()
  void look_up(at::Tensor& to, const int32_t* row) const { matrix_->look_up(to, row); }

  // Bytes of a second copy of the weights for Ops::packed_product(); 0: there is no such product.
  int64_t packed_bytes() const { return matrix_ == nullptr ? 0 : matrix_->packed_bytes(); }
  void pack();  // makes that copy, if there is such a product

  // The most rows of a product that does not unpack the whole matrix: 1 GB for a head of 152,000
  // tokens.
  int most_rows() const { return matrix_->most_rows(); }

  // Undefined: the matrix is packed or in blocks.
  at::Tensor weight() const { return matrix_ == nullptr ? at::Tensor() : matrix_->tensor(); }
  int64_t in() const { return matrix_ == nullptr ? 0 : matrix_->in(); }
  int64_t outs() const { return matrix_ == nullptr ? 0 : matrix_->outs(); }
  int64_t parameters() const;
  int64_t bytes() const;  // without the packed copy
  // The names of matrices that have no product in the model's format, and their bytes: of kStored,
  // in blocks in the file but not here; of kFp8, not rounded.
  const std::vector<std::string>& expanded() const { return expanded_; }
  int64_t expanded_bytes() const { return expanded_.empty() ? 0 : bytes(); }

 private:
  std::unique_ptr<WeightMatrix> matrix_;  // null: empty
  at::Tensor bias_;                       // [out] or undefined
  std::vector<std::string> expanded_;
};

}  // namespace tandem
