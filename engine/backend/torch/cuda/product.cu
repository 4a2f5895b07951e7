// Products of few rows on CUDA.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>

#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/product.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

static_assert(kMostProductRows == kMostPackedRows);

// Calls f.operator()<T>() for the type of packed weights.
template <class F>
void for_packed(const at::Tensor& t, const F& f) {
  if (t.scalar_type() == at::kHalf) {
    f.template operator()<Half>();
  } else {
    TORCH_CHECK(t.scalar_type() == at::kBFloat16, "no packed products in ", t.scalar_type());
    f.template operator()<BFloat16>();
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

PackedShape shape_of(int64_t outs, int64_t in, bool pairs) { return {outs, in, pairs}; }

int64_t packed_numbers(int64_t outs, int64_t in, at::ScalarType type, bool pairs) {
  const bool fits = (type == at::kBFloat16 || type == at::kHalf) && in % 8 == 0;
  return fits ? shape_of(outs, in, pairs).words() * 8 : 0;
}

at::Tensor pack(const at::Tensor& weights, bool pairs) {
  const PackedShape shape = shape_of(weights.size(0), weights.size(1), pairs);
  at::Tensor packed = at::empty({shape.words() * 8}, weights.options());
  for_packed(weights,
             [&]<class T>() { cuda::pack<T>(stream(), data<T>(packed), data<T>(weights), shape); });
  return packed;
}

void packed_product(at::Tensor& out, const LinearInput& input, const at::Tensor& weights,
                    int64_t outs, const Epilogue& e) {
  const int64_t rows = input.x.size(0);
  if (input.norm != nullptr) {
    TORCH_CHECK(input.normed != nullptr, "a norm without scratch for its rows");
    ops().norm(*input.normed, input.x, *input.norm);
  }
  const at::Tensor& from = input.norm != nullptr ? *input.normed : input.x;
  const bool gated = e.then == ProductThen::kGate;
  for_packed(weights, [&]<class T>() {
    ProductArguments<T> a;
    a.shape = shape_of(outs, input.x.size(1), gated);
    a.weights = data<T>(weights);
    a.rows = static_cast<int>(rows);
    TORCH_CHECK(from.scalar_type() == weights.scalar_type(), "packed products of ",
                weights.scalar_type(), " with rows of ", from.scalar_type());
    a.x = data<T>(from);
    a.bias = data<T>(e.bias);
    a.then = e.then;
    a.activation = e.activation;
    a.end = e.columns.first;
    if (e.added != nullptr) {
      a.added = data<float>(e.added->sums);
      a.added_row = e.added->row;
    }
    if (out.scalar_type() == at::kFloat) {
      a.sums = data<float>(out);
    } else {
      a.out = data<T>(out);
    }
    // As many blocks as run at once, so that none begins late.
    const auto* const device = at::cuda::getCurrentDeviceProperties();
    cuda::product<T>(stream(), a, int64_t{kProductBlocks} * device->multiProcessorCount);
  });
}

}  // namespace

void add_product(Ops& ops) {
  ops.packed_numbers = packed_numbers;
  ops.pack = pack;
  ops.packed_product = packed_product;
}

}  // namespace tandem::cuda
