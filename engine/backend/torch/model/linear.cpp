#include "engine/backend/torch/model/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/backend/torch/model/load.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Whether some of the matrices are in blocks in the file.
bool is_in_blocks(const TensorSource& source, const LinearSpec& spec) {
  return std::ranges::any_of(spec.names, [&](const std::string& name) {
    const TensorView* const view = source.find(name + ".weight");
    return view != nullptr && view->block != nullptr;
  });
}

// Whether all matrices are in blocks of 4 bits in the file.
bool is_in_four_bits(const TensorSource& source, const LinearSpec& spec) {
  return std::ranges::all_of(spec.names, [&](const std::string& name) {
    const TensorView* const view = source.find(name + ".weight");
    if (view == nullptr || view->block == nullptr) return false;
    return view->block->type == BlockType::kQ40 || view->block->type == BlockType::kQ4K;
  });
}

// The weights in blocks of 4 to 8 bits, as in the file or rounded; empty: they have no such form.
absl::StatusOr<cpu::QuantizedMatrix> load_blocks(const TensorSource& source, const LinearSpec& spec,
                                                 DType dtype, cpu::Layout layout) {
  if (dtype == DType::kStored) return load_quantized(source, spec, layout);
  if (dtype == DType::kQ40 && is_in_four_bits(source, spec)) {
    TANDEM_ASSIGN_OR_RETURN(cpu::QuantizedMatrix blocks, load_quantized(source, spec, layout));
    if (!blocks.empty()) return blocks;
  }
  if (dtype == DType::kInt4 || dtype == DType::kQ40) {
    return load_rounded(source, spec, dtype, layout);
  }
  return cpu::QuantizedMatrix();
}

}  // namespace

absl::StatusOr<Linear> Linear::load(const TensorSource& source, const WeightStore& store,
                                    const LinearSpec& spec, cpu::Layout layout) {
  const Platform& platform = store.platform();
  Linear l;
  Fp8Weights fp8;
  if (store.dtype == DType::kFp8) {
    TANDEM_ASSIGN_OR_RETURN(fp8, load_fp8(source, spec, store.device));
  }
  TANDEM_ASSIGN_OR_RETURN(cpu::QuantizedMatrix blocks,
                          load_blocks(source, spec, store.dtype, layout));
  if (fp8.codes.defined()) {
    l.matrix_ = make_matrix(std::move(fp8), platform.ops());
  } else if (!blocks.empty()) {
    l.matrix_ = platform.load_blocks(std::move(blocks), spec.tokens, store);
  } else {
    TANDEM_ASSIGN_OR_RETURN(l.matrix_, platform.load_dense(source, spec, store, layout));
    if (store.dtype == DType::kFp8 ? !spec.tokens
                                   : store.dtype == DType::kStored && is_in_blocks(source, spec)) {
      l.expanded_ = spec.names;
    }
  }
  TANDEM_ASSIGN_OR_RETURN(l.bias_, load_bias(source, spec, store.rows(), store.device));
  return l;
}

void Linear::into(at::Tensor& out, const LinearInput& x, const cpu::Columns& columns) const {
  matrix_->multiply(out, x, {.bias = bias_, .columns = columns}, {});
}

void Linear::add_to(at::Tensor& residual, const LinearInput& x, at::Tensor& scratch) const {
  matrix_->multiply(residual, x, {.bias = bias_, .then = ProductThen::kAdd}, {.sums = &scratch});
}

void Linear::activate_into(at::Tensor& out, const LinearInput& x, Activation activation) const {
  matrix_->multiply(out, x,
                    {.bias = bias_, .then = ProductThen::kActivate, .activation = activation}, {});
}

void Linear::gate_into(at::Tensor& out, const LinearInput& x, Activation activation,
                       RowBuffer& scratch, const AddedRows* added) const {
  matrix_->multiply(
      out, x, {.bias = bias_, .then = ProductThen::kGate, .activation = activation, .added = added},
      {.pairs = &scratch});
}

void Linear::pack() {
  if (matrix_ == nullptr) return;
  if (std::unique_ptr<WeightMatrix> packed = matrix_->packed()) matrix_ = std::move(packed);
}

int64_t Linear::parameters() const { return outs() * in() + (bias_.defined() ? bias_.numel() : 0); }

int64_t Linear::bytes() const {
  return (matrix_ == nullptr ? 0 : matrix_->bytes()) +
         (bias_.defined() ? static_cast<int64_t>(bias_.nbytes()) : 0);
}

}  // namespace tandem
