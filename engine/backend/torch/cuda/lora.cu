// Low-rank additions of LoRA adapters on CUDA.
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/lora.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

void add_lora(at::Tensor& to, const at::Tensor& x, const LoraRowsOfLayer& rows, bool add,
              at::Tensor& ranks) {
  for_type(x, [&]<class T>() {
    using R = Residual<T>;
    using Matrices = typename LoraArguments<T>::Matrices;
    static_assert(sizeof(Matrices) == sizeof(LoraLayer));
    LoraArguments<T> a;
    a.adapter = reinterpret_cast<const Matrices* const*>(rows.rows.adapter);
    a.layer = rows.layer;
    a.rows = static_cast<int>(x.size(0));
    a.x = data<T>(x);
    a.in = x.size(1);
    a.ranks = data<R>(ranks);
    a.most_ranks = static_cast<int>(ranks.size(1));
    a.columns = to.size(1);
    a.add = add;
    if (to.scalar_type() == x.scalar_type()) {
      cuda::add_lora<T, T>(stream(), a, data<T>(to));
    } else {
      TORCH_CHECK(to.scalar_type() == ranks.scalar_type(), "additions to ", to.scalar_type(),
                  " of rows of ", x.scalar_type());
      cuda::add_lora<T, R>(stream(), a, data<R>(to));
    }
  });
}

void add_rows(at::Tensor& to, const AddedRows& added) {
  for_type(to, [&]<class T>() {
    cuda::add_rows<T>(stream(), data<T>(to), data<Residual<T>>(added.sums), added.row, to.size(0),
                      to.size(1));
  });
}

}  // namespace

void add_loras(Ops& ops) {
  ops.add_lora = add_lora;
  ops.add_rows = add_rows;
}

}  // namespace tandem::cuda
