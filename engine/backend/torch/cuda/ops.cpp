#include "engine/backend/torch/ops.h"

#include "engine/backend/torch/cuda/kernels.h"

namespace tandem::cuda {

const Ops& ops() {
  static const Ops table = [] {
    Ops all{};
    add_elementwise(all);
    add_attention(all);
    add_prompt_attention(all);
    add_readout(all);
    add_product(all);
    add_quantized(all);
    add_fp8(all);
    add_loras(all);
    add_library_products(all);
    return all;
  }();
  return table;
}

}  // namespace tandem::cuda
