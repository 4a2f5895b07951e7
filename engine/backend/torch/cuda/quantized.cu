// Products with weights in blocks on CUDA.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/quantized.h"
#include "engine/backend/torch/cuda/kernels/quantized_pack.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

BlockShape shape_of(const BlockMatrix& m) { return {m.outs, m.in, m.pairs, m.format.type}; }

BlockMatrix pack_blocks(const cpu::QuantizedMatrix& m, size_t segment, at::Device device) {
  const BlockShape shape = block_shape(m, segment);
  at::Tensor host = at::empty({shape.words() * 16}, at::kByte);
  auto* const to = static_cast<std::byte*>(host.mutable_data_ptr());
  cpu::parallel_for(shape.tiles(), 8, [&](int64_t begin, int64_t end) {
    cuda::pack_blocks(to, m, segment, shape, begin, end);
  });
  return {host.to(device), m.segments()[segment].format, shape.outs, shape.in, shape.pairs};
}

// Rounds rows to 8 bits, sixteen at a time, and multiplies them by each part.
void block_product(at::Tensor& out, const LinearInput& input, const std::vector<BlockMatrix>& parts,
                   const Epilogue& e) {
  const at::Tensor& x = input.x;
  const Norm* const norm_of_x = input.norm;
  const bool fold = norm_of_x != nullptr && norm_of_x->kind == NormKind::kRms &&
                    x.scalar_type() == at::kFloat;  // of fp32 rows alone
  if (norm_of_x != nullptr && !fold) {
    TORCH_CHECK(input.normed != nullptr, "a norm without scratch for its rows");
    ops().norm(*input.normed, x, *norm_of_x);
  }
  const at::Tensor& from = norm_of_x != nullptr && !fold ? *input.normed : x;
  const bool narrow = from.scalar_type() == at::kBFloat16;
  TORCH_CHECK(narrow || from.scalar_type() == at::kFloat, "products of blocks with rows of ",
              from.scalar_type());
  const int64_t in = parts.front().in;
  const int64_t steps = shape_of(parts.front()).steps();
  // As many blocks as run at once, so that none begins late.
  const int64_t blocks =
      int64_t{kBlockProductBlocks} * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const auto bytes = [&](int64_t n) { return at::empty({n}, x.options().dtype(at::kByte)); };
  const int64_t rows = x.size(0), width = out.size(1);
  at::Tensor codes =
      bytes(4 * BlockRows::code_words(steps, std::min<int64_t>(rows, kMostProductRows)));
  at::Tensor scales =
      bytes(BlockRows::scale_count(steps) * static_cast<int64_t>(sizeof(GroupScale)));
  const BlockRows rounded{data<uint32_t>(codes), data<GroupScale>(scales)};
  for (int64_t first = 0; first < rows; first += kMostProductRows) {
    const int n = static_cast<int>(std::min<int64_t>(rows - first, kMostProductRows));
    if (narrow) {
      quantize_rows<BFloat16>(stream(), rounded, data<BFloat16>(from) + first * in, n, in);
    } else {
      NormArguments<float> norm;
      if (fold) {
        norm.weight = data<float>(norm_of_x->weight);
        norm.eps = static_cast<float>(norm_of_x->eps);
      }
      quantize_rows<float>(stream(), rounded, data<float>(from) + first * in, n, in, norm);
    }
    int64_t column = 0;
    for (const BlockMatrix& part : parts) {
      if (e.columns.first > 0 && column >= e.columns.first) break;
      BlockArguments<BFloat16> a;
      a.shape = shape_of(part);
      a.weights = data<uint4>(part.data);
      a.x = rounded;
      a.rows = n;
      if (e.bias.defined()) a.bias = data<BFloat16>(e.bias) + column;
      a.then = e.then;
      a.activation = e.activation;
      if (e.columns.first > 0) a.end = std::min(e.columns.first - column, a.shape.width());
      a.stride = width;
      if (e.added != nullptr) {
        TORCH_CHECK(parts.size() == 1, "additions to a product in ", parts.size(), " parts");
        a.added = data<float>(e.added->sums);
        a.added_row = e.added->row + first;
      }
      if (out.scalar_type() == at::kFloat) {
        a.sums = data<float>(out) + first * width + column;
      } else {
        a.out = data<BFloat16>(out) + first * width + column;
      }
      cuda::block_product<BFloat16>(stream(), a, blocks);
      column += a.shape.width();
    }
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void unpack_blocks(at::Tensor& to, const BlockMatrix& m, const int32_t* rows) {
  const BlockShape shape = shape_of(m);
  const auto* const from = data<uint4>(m.data);
  if (to.scalar_type() == at::kFloat) {
    cuda::unpack_blocks<float>(stream(), data<float>(to), from, shape, rows, to.size(0));
  } else {
    TORCH_CHECK(to.scalar_type() == at::kBFloat16, "blocks as numbers of ", to.scalar_type());
    cuda::unpack_blocks<BFloat16>(stream(), data<BFloat16>(to), from, shape, rows, to.size(0));
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void add_quantized(Ops& ops) {
  ops.pack_blocks = pack_blocks;
  ops.block_product = block_product;
  ops.unpack_blocks = unpack_blocks;
}

}  // namespace tandem::cuda
