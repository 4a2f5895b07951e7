#include "engine/backend/torch/model/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "engine/backend/torch/ops.h"

namespace tandem {

void Linear::into(at::Tensor& out, const at::Tensor& x, at::Tensor* scratch) const {
  if (x.is_cpu()) return ops::product(out, x, weight, bias, /*add=*/false);
  if (out.scalar_type() != x.scalar_type()) {
    into(*scratch, x);
    out.copy_(*scratch);
  } else if (bias.defined()) {
    at::addmm_out(out, bias, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
}

void Linear::add_to(at::Tensor& residual, const at::Tensor& x, at::Tensor& scratch) const {
  if (x.is_cpu()) return ops::product(residual, x, weight, bias, /*add=*/true);
  if (residual.scalar_type() == x.scalar_type()) {
    residual.addmm_(x, weight.t());
    if (bias.defined()) residual.add_(bias);
    return;
  }
  into(scratch, x);
  residual.add_(scratch);
}

}  // namespace tandem
