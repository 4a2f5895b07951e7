// Products of any number of rows on CUDA, by cuBLAS through LibTorch.
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "engine/backend/torch/cuda/kernels.h"

namespace tandem::cuda {
namespace {

void linear(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
            const at::Tensor& bias) {
  if (x.scalar_type() == at::kDouble) {
    out.copy_(at::linear(x, weight, bias));
  } else if (out.scalar_type() != x.scalar_type()) {
    at::mm_out(out, x, weight.t(), out.scalar_type());
    if (bias.defined()) out.add_(bias);
  } else if (bias.defined()) {
    at::addmm_out(out, bias, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
}

void add_linear(at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias, at::Tensor& scratch) {
  if (residual.scalar_type() == x.scalar_type()) {
    residual.addmm_(x, weight.t());
    if (bias.defined()) residual.add_(bias);
  } else {
    linear(scratch, x, weight, bias);
    residual.add_(scratch);
  }
}

}  // namespace

void add_library_products(Ops& ops) {
  ops.linear = linear;
  ops.add_linear = add_linear;
}

}  // namespace tandem::cuda
