#include "engine/backend/torch/ops.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/backend/torch/aten_ops.h"
#include "engine/backend/torch/cpu/attention.h"
#include "engine/backend/torch/cpu/elementwise.h"
#include "engine/backend/torch/cpu/options.h"
#include "engine/backend/torch/profile.h"
#ifdef TANDEM_CUDA
#include "engine/backend/torch/cuda/kernels.h"
#endif

namespace tandem {
namespace {

// Calls f.operator()<T, R>() for the product type of a tensor.
template <class F>
void for_type(const at::Tensor& t, const F& f) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return f.template operator()<float, float>();
    case at::kDouble:
      return f.template operator()<double, double>();
    case at::kBFloat16:
      return f.template operator()<cpu::BFloat16, float>();
    default:
      TORCH_CHECK(false, "no arithmetic in ", t.scalar_type());
  }
}

// (The library's symbols of const_data_ptr<T>() are mangled as GCC does it: clang misses them.)
template <class T>
T* data(at::Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}
template <class T>
const T* data(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <class K>
cpu::PagedKv<K> paged(const LayerKv& kv, const RowView& rows) {
  return {kv.kv_heads, kv.head_dim, rows.page_rows, static_cast<K*>(kv.keys.mutable_data_ptr()),
          static_cast<K*>(kv.values.mutable_data_ptr())};
}

// Calls f.operator()<T, K, R>() for the types of activations and of a cache.
template <class F>
void for_types(const at::Tensor& t, const at::Tensor& kv, const F& f) {
  for_type(t, [&]<class T, class R>() {
    if constexpr (std::is_same_v<R, double>) {
      TORCH_CHECK(kv.scalar_type() == at::kDouble, "no attention to ", kv.scalar_type());
      f.template operator()<double, double, double>();
    } else if (kv.scalar_type() == at::kBFloat16) {
      f.template operator()<T, cpu::BFloat16, R>();
    } else {
      TORCH_CHECK(kv.scalar_type() == at::kFloat, "no attention to ", kv.scalar_type());
      f.template operator()<T, float, R>();
    }
  });
}

}  // namespace

Rope::Rope(std::vector<float> inverse, at::ScalarType type, at::Device device)
    : host_(std::move(inverse)), type_(type) {
  at::Tensor t = at::empty({static_cast<int64_t>(host_.size())}, at::kFloat);
  std::memcpy(t.mutable_data_ptr(), host_.data(), host_.size() * sizeof(float));
  inverse_frequencies = t.to(device);
}

void Rope::reach(int max_position) {
  if (max_position < positions_ || !inverse_frequencies.is_cpu()) return;
  positions_ = std::max({256, 2 * positions_, max_position + 1});
  const auto half = static_cast<int64_t>(host_.size());
  cosine = at::empty({positions_, half}, type_);
  sine = at::empty({positions_, half}, type_);
  const auto fill = [&]<class R>(R* c, R* s) {
    for (int64_t p = 0; p < positions_; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(p) * host_[static_cast<size_t>(i)];
        c[p * half + i] = static_cast<R>(std::cos(static_cast<double>(angle)));
        s[p * half + i] = static_cast<R>(std::sin(static_cast<double>(angle)));
      }
    }
  };
  if (type_ == at::kDouble) {
    fill(data<double>(cosine), data<double>(sine));
  } else {
    fill(data<float>(cosine), data<float>(sine));
  }
}

namespace ops {

#ifdef TANDEM_CUDA
#define TANDEM_ON_CUDA(tensor, call) \
  if ((tensor).is_cuda()) return cuda::call
#else
#define TANDEM_ON_CUDA(tensor, call)
#endif
// The reference instead, where the lane is told so.
#define TANDEM_OR_ATEN(call) \
  if (cpu::options().kernels == CpuKernels::kAten) return aten::call

void embed(at::Tensor& x, const at::Tensor& table, const int32_t* token) {
  const StepProfile::Section section(StepProfile::kEmbed);
  TANDEM_ON_CUDA(x, embed(x, table, token));
  if (table.scalar_type() == at::kHalf) {
    return cpu::embed<_Float16, float>(data<float>(x), data<_Float16>(table), token, x.size(0),
                                       x.size(1));
  }
  for_type(table, [&]<class T, class R>() {
    cpu::embed<T, R>(data<R>(x), data<T>(table), token, x.size(0), x.size(1));
  });
}

void copy_rows(at::Tensor& to, const int64_t* to_index, const at::Tensor& from,
               const int64_t* from_index, int64_t n) {
  const StepProfile::Section section(StepProfile::kEmbed);
  TANDEM_ON_CUDA(to, copy_rows(to, to_index, from, from_index, n));
  const auto bytes = static_cast<size_t>(from.size(1)) * from.element_size();
  auto* t = static_cast<std::byte*>(to.mutable_data_ptr());
  const auto* f = static_cast<const std::byte*>(from.const_data_ptr());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t ti = to_index != nullptr ? to_index[i] : i;
    const int64_t fi = from_index != nullptr ? from_index[i] : i;
    std::memcpy(t + static_cast<size_t>(ti) * bytes, f + static_cast<size_t>(fi) * bytes, bytes);
  }
}

void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps) {
  const StepProfile::Section section(StepProfile::kNorm);
  TANDEM_ON_CUDA(x, rms_norm(out, x, weight, eps));
  TANDEM_OR_ATEN(rms_norm(out, x, weight, eps));
  for_type(out, [&]<class T, class R>() {
    cpu::rms_norm<T, R>(data<T>(out), data<R>(x), data<R>(weight), eps, x.size(0), x.size(1));
  });
}

void rope_and_store(at::Tensor& qkv, const RowView& rows, const LayerKv& kv, const Rope& rope) {
  const StepProfile::Section section(StepProfile::kRope);
  TANDEM_ON_CUDA(qkv, rope_and_store(qkv, rows, kv, rope));
  TANDEM_OR_ATEN(rope_and_store(qkv, rows, kv, rope));
  for_types(qkv, kv.keys, [&]<class T, class K, class R>() {
    cpu::rope_and_store<T, K, R>(data<T>(qkv), kv.heads, rows, paged<K>(kv, rows),
                                 data<R>(rope.cosine), data<R>(rope.sine));
  });
}

void attention(at::Tensor& out, const at::Tensor& qkv, const RowView& rows, const LayerKv& kv,
               double scale) {
  const StepProfile::Section section(StepProfile::kAttention);
  TANDEM_ON_CUDA(qkv, attention(out, qkv, rows, kv, scale));
  TANDEM_OR_ATEN(attention(out, qkv, rows, kv, scale));
  for_types(qkv, kv.keys, [&]<class T, class K, class R>() {
    cpu::attention<T, K, R>({data<T>(qkv), qkv.size(1), data<T>(out), kv.heads}, rows,
                            paged<const K>(kv, rows), scale);
  });
}

void silu_mul(at::Tensor& out, const at::Tensor& gate_up) {
  const StepProfile::Section section(StepProfile::kActivation);
  TANDEM_ON_CUDA(out, silu_mul(out, gate_up));
  TANDEM_OR_ATEN(silu_mul(out, gate_up));
  for_type(out, [&]<class T, class R>() {
    cpu::silu_mul<T, R>(data<T>(out), data<T>(gate_up), out.size(0), out.size(1));
  });
}

}  // namespace ops
}  // namespace tandem
