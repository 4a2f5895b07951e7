// The operations of ops.h between products, on CUDA.
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels.h"
#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

template <class R>
NormArguments<R> arguments(const Norm& norm) {
  return {norm.kind == NormKind::kLayer, data<R>(norm.weight), data<R>(norm.bias),
          static_cast<R>(norm.eps)};
}

void embed(at::Tensor& x, const at::Tensor& table, const int32_t* token) {
  for_type(table, [&]<class T>() {
    cuda::embed<T>(stream(), data<Residual<T>>(x), data<T>(table), token, x.size(0), x.size(1));
  });
}

void copy_rows(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
               const int64_t* from_index, int64_t n) {
  const int64_t words = from.size(1) * static_cast<int64_t>(from.element_size()) / 4;
  cuda::copy_rows(stream(), data<int32_t>(to), to_index, data<int32_t>(from), from_index, n, words);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void scale_rows(at::Tensor& x, const int32_t* token, double scale) {
  for_type(x, [&]<class T>() {
    using R = Residual<T>;
    cuda::scale_rows<R>(stream(), data<R>(x), token, scale, x.size(0), x.size(1));
  });
}

void add_positions(at::Tensor& x, const at::Tensor& table, const int32_t* token,
                   const int32_t* position) {
  for_type(table, [&]<class T>() {
    cuda::add_positions<T>(stream(), data<Residual<T>>(x), data<T>(table), token, position,
                           x.size(0), x.size(1));
  });
}

void norm(at::Tensor& out, const at::Tensor& x, const Norm& norm) {
  for_type(out, [&]<class T>() {
    using R = Residual<T>;
    cuda::norm<T>(stream(), data<T>(out), data<R>(x), arguments<R>(norm), x.size(0), x.size(1));
  });
}

void add_norm(at::Tensor& x, const at::Tensor& y, const Norm& norm) {
  for_type(y, [&]<class T>() {
    using R = Residual<T>;
    cuda::add_norm<T>(stream(), data<R>(x), data<T>(y), arguments<R>(norm), x.size(0), x.size(1));
  });
}

void norm_heads(at::Tensor& x, int first, int heads, int head_dim, const Norm& norm) {
  for_type(x, [&]<class T>() {
    cuda::norm_heads<T>(stream(), data<T>(x) + int64_t{first} * head_dim, x.size(1), heads,
                        head_dim, arguments<Residual<T>>(norm), x.size(0));
  });
}

void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope) {
  for_type(qkv, [&]<class T>() {
    PagedHeads<T> to;
    to.heads = kv.heads;
    to.kv_heads = kv.kv_heads;
    to.head_dim = kv.head_dim;
    to.keys = static_cast<T*>(kv.keys.mutable_data_ptr());
    to.values = static_cast<T*>(kv.values.mutable_data_ptr());
    Rotation<Residual<T>> rotation;
    rotation.inverse_frequencies = data<float>(rope.inverse_frequencies);
    rotation.factor = static_cast<Residual<T>>(rope.factor);
    cuda::rope_and_store<T>(stream(), data<T>(qkv), rows, to, rotation);
  });
}

void gate(at::Tensor& out, const at::Tensor& gate_up, Activation activation) {
  for_type(out, [&]<class T>() {
    cuda::gate<T>(stream(), data<T>(out), data<T>(gate_up), activation, out.size(0), out.size(1));
  });
}

void activate(at::Tensor& x, Activation activation) {
  for_type(x, [&]<class T>() { cuda::activate<T>(stream(), data<T>(x), activation, x.numel()); });
}

}  // namespace

bool has_machine_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t e =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&scale_rows_kernel<float>));
  if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  C10_CUDA_CHECK(e);
  return true;
}

std::string built_for() {
  std::string all;
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    absl::StrAppend(&all, all.empty() ? "" : ", ", architecture / 100, ".", architecture / 10 % 10);
  }
  return all;
}

void overlap_launches(bool overlap) { launches_overlap = overlap; }

void add_elementwise(Ops& ops) {
  ops.embed = embed;
  ops.scale_rows = scale_rows;
  ops.add_positions = add_positions;
  ops.copy_rows = copy_rows;
  ops.norm = norm;
  ops.add_norm = add_norm;
  ops.norm_heads = norm_heads;
  ops.rope_and_store = rope_and_store;
  ops.gate = gate;
  ops.activate = activate;
}

}  // namespace tandem::cuda
