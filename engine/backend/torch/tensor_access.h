// Typed access to tensors, for the files that call kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace tandem {

// Calls f.operator()<T, R>() for the type T of products and the type R of their residual stream.
// BFloat16: the platform's type.
template <class BFloat16, class F>
void for_number_type(const at::Tensor& t, const F& f) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return f.template operator()<float, float>();
    case at::kDouble:
      return f.template operator()<double, double>();
    case at::kBFloat16:
      return f.template operator()<BFloat16, float>();
    default:
      TORCH_CHECK(false, "no arithmetic in ", t.scalar_type());
  }
}

// Null for an undefined tensor. (GCC's mangling of const_data_ptr<T>() in the library is not
// clang's.)
template <class T>
T* data(at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}
template <class T>
const T* data(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}

}  // namespace tandem
