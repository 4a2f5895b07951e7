#include "engine/backend/torch/weights/convert.h"

#include <bit>
#include <cstring>

#include "engine/base/status.h"

namespace tandem {
namespace {

template <class Stored>
Stored load(const std::byte* at) {
  Stored value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

template <class Stored, class Out, class Widen>
void widen_all(const std::byte* from, std::span<Out> out, Widen widen) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<Out>(widen(load<Stored>(from + i * sizeof(Stored))));
  }
}

template <class Out>
absl::Status read(const TensorView& tensor, int64_t first, std::span<Out> out) {
  if (!is_floating(tensor.dtype)) {
    return out_of_range("dtype", safe_dtype_name(tensor.dtype), "F64 F32 F16 BF16");
  }
  if (first < 0 || first > tensor.elements() ||
      static_cast<int64_t>(out.size()) > tensor.elements() - first) {
    return absl::OutOfRangeError(absl::StrCat("elements ", first, " to ", first + out.size(),
                                              " of a tensor that has ", tensor.elements()));
  }
  const std::byte* from = tensor.data + static_cast<size_t>(first) * safe_dtype_bytes(tensor.dtype);
  switch (tensor.dtype) {
    case SafeDType::kF64:
      widen_all<double>(from, out, [](double v) { return v; });
      break;
    case SafeDType::kF16:
      widen_all<uint16_t>(from, out, half_to_float);
      break;
    case SafeDType::kBF16:
      widen_all<uint16_t>(from, out, bfloat_to_float);
      break;
    default:
      widen_all<float>(from, out, [](float v) { return v; });
      break;
  }
  return absl::OkStatus();
}

}  // namespace

bool is_floating(SafeDType dtype) {
  return dtype == SafeDType::kF64 || dtype == SafeDType::kF32 || dtype == SafeDType::kF16 ||
         dtype == SafeDType::kBF16;
}

float half_to_float(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

float bfloat_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

absl::Status to_float(const TensorView& tensor, int64_t first, std::span<float> out) {
  return read(tensor, first, out);
}

absl::Status to_double(const TensorView& tensor, int64_t first, std::span<double> out) {
  return read(tensor, first, out);
}

}  // namespace tandem
