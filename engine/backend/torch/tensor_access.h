// A tensor's numbers by its type: what the files of kernels share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace tandem {

// Calls f.operator()<T, R>() for the type of products T and of the residual stream R that belongs
// to it. BFloat16: how the device calls it.
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

// Null of an undefined tensor. (The library's symbols of const_data_ptr<T>() are mangled as GCC
// does it: clang misses them.)
template <class T>
T* data(at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}
template <class T>
const T* data(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}

}  // namespace tandem
