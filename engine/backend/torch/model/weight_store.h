// The type and place of a model's weights.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/platform.h"
#include "engine/base/config.h"

namespace tandem {

struct WeightStore {
  DType dtype = DType::kFloat32;  // not kAuto; on CUDA not kInt8; kFp8: of ops with fp8_product
  at::Device device = at::kCPU;
  CpuKernels kernels = CpuKernels::kOwn;

  const Platform& platform() const { return platform_of(device, kernels); }
  const Ops& ops() const { return platform().ops(); }
  // Rows between linear layers, and biases.
  at::ScalarType rows() const { return platform().row_type(dtype); }
  // The residual stream and norms.
  at::ScalarType residual() const { return dtype == DType::kFloat64 ? at::kDouble : at::kFloat; }
};

}  // namespace tandem
