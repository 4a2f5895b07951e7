// Products with weights in fp8 on CUDA, by LibTorch.
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/fp8.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

static_assert(kRoundedMost == kFp8Most);

// LibTorch's sums are bf16, and fp32 inside: fast accumulation is off.
void fp8_product(at::Tensor& out, const at::Tensor& x, const Fp8Weights& weights,
                 const at::Tensor& bias) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "products in fp8 with rows of ", x.scalar_type());
  at::Tensor codes = at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn));
  at::Tensor scales = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
  round_rows<BFloat16>(stream(), data<uint8_t>(codes), data<float>(scales), data<BFloat16>(x),
                       x.size(0), x.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const bool narrow = out.scalar_type() == at::kBFloat16;
  at::Tensor y = narrow ? out : at::empty(out.sizes(), x.options());
  at::_scaled_mm_out(y, codes, weights.codes.t(), scales, weights.scales, {}, {}, at::kBFloat16,
                     /*use_fast_accum=*/false);
  if (bias.defined()) y.add_(bias);
  if (!narrow) out.copy_(y);
}

}  // namespace

void add_fp8(Ops& ops) { ops.fp8_product = fp8_product; }

}  // namespace tandem::cuda
