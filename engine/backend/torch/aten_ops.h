// The operations of ops.h on a CPU in LibTorch's operators: what the kernels in cpu/ are held
// against, in tests and with CpuKernels::kAten. Slow, and without promises about bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::aten {

void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps);
void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope);
void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale);
void silu_mul(at::Tensor& out, const at::Tensor& gate_up);

}  // namespace tandem::aten
