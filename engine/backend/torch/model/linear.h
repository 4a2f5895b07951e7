// A linear layer, or several with one input side by side.
//
// On CPU the products are our own (cpu/product.h), on CUDA LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem {

struct Linear {
  at::Tensor weight;  // [out, in], contiguous
  at::Tensor bias;    // [out] or undefined

  // out = x W^T + bias. x: [rows, in], out: [rows, out], of x's type or fp32
  // scratch: [rows, out] of x's type, used on CUDA where out has another; else may be undefined.
  void into(at::Tensor& out, const at::Tensor& x, at::Tensor* scratch = nullptr) const;

  // residual += x W^T + bias. residual: [rows, out]; scratch as above.
  void add_to(at::Tensor& residual, const at::Tensor& x, at::Tensor& scratch) const;
};

}  // namespace tandem
