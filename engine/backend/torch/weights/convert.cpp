#include "engine/backend/torch/weights/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/load.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

// Whether elements are stored in order, unblocked and without an offset.
bool as_stored(const TensorView& tensor) {
  return tensor.block == nullptr && tensor.head_rows == 0 && tensor.less == 0;
}

template <class Stored, class Out, class Widen>
void widen_all(const std::byte* from, std::span<Out> out, Widen widen) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<Out>(widen(load<Stored>(from + i * sizeof(Stored))));
  }
}

absl::Status check_range(const TensorView& tensor, int64_t first, size_t count) {
  if (first < 0 || first > tensor.elements() ||
      static_cast<int64_t>(count) > tensor.elements() - first) {
    return absl::OutOfRangeError(absl::StrCat("elements ", first, " to ", first + count,
                                              " of a tensor that has ", tensor.elements()));
  }
  return absl::OkStatus();
}

absl::Status read_raw(const TensorView& tensor, int64_t first, std::span<uint16_t> out) {
  TANDEM_RETURN_IF_ERROR(check_range(tensor, first, out.size()));
  std::memcpy(out.data(), tensor.data + static_cast<size_t>(first) * sizeof(uint16_t),
              out.size() * sizeof(uint16_t));
  return absl::OkStatus();
}

// Elements in file order, of a blocked tensor.
template <class Out>
absl::Status decode(const TensorView& tensor, int64_t first, std::span<Out> out) {
  const BlockFormat& format = *tensor.block;
  std::array<float, 256> values;
  for (size_t done = 0; done < out.size();) {
    const int64_t at = first + static_cast<int64_t>(done);
    const int64_t block = at / format.values, skip = at % format.values;
    const size_t n = std::min(out.size() - done, static_cast<size_t>(format.values - skip));
    format.decode(tensor.data + block * format.bytes, values.data());
    bool finite = true;
    for (int64_t i = 0; i < format.values; ++i) finite &= std::isfinite(values[i]);
    if (!finite) {
      return out_of_range(absl::StrCat("scale of block ", block, " (", format.name, ")"),
                          "not finite", "finite numbers");
    }
    std::copy_n(values.begin() + skip, n, out.begin() + static_cast<ptrdiff_t>(done));
    done += n;
  }
  return absl::OkStatus();
}

// Elements in file order.
template <class Out>
absl::Status read_stored(const TensorView& tensor, int64_t first, std::span<Out> out) {
  if (tensor.block != nullptr) return decode(tensor, first, out);
  const std::byte* from = tensor.data + static_cast<size_t>(first) * safe_dtype_bytes(tensor.dtype);
  switch (tensor.dtype) {
    case SafeDType::kF64:
      widen_all<double>(from, out, [](double v) { return v; });
      break;
    case SafeDType::kF8E4M3:
      widen_all<uint8_t>(from, out, fp8_to_float);
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

// Elements in the model's order, with head rows reordered and the converter's offset subtracted.
template <class Out>
absl::Status read(const TensorView& tensor, int64_t first, std::span<Out> out) {
  if (tensor.block == nullptr && !is_floating(tensor.dtype)) {
    return out_of_range("dtype", safe_dtype_name(tensor.dtype), kFloatingTypes);
  }
  TANDEM_RETURN_IF_ERROR(check_range(tensor, first, out.size()));
  if (tensor.head_rows == 0) {
    TANDEM_RETURN_IF_ERROR(read_stored(tensor, first, out));
  } else {
    const int64_t row_size = tensor.elements() / tensor.shape[0];
    for (size_t done = 0; done < out.size();) {
      const int64_t at = first + static_cast<int64_t>(done);
      const int64_t row = at / row_size, skip = at % row_size;
      const size_t n = std::min(out.size() - done, static_cast<size_t>(row_size - skip));
      const int64_t from = stored_row(row, tensor.head_rows) * row_size + skip;
      TANDEM_RETURN_IF_ERROR(read_stored(tensor, from, out.subspan(done, n)));
      done += n;
    }
  }
  if (tensor.less != 0) {
    for (Out& value : out) value -= tensor.less;
  }
  return absl::OkStatus();
}

// Elements as floats in pieces, each converted by `narrow`. (F64 is rounded twice: an error of one
// ulp in about 10^9 elements. Checkpoints in F64 do not occur in practice.)
template <class Narrow>
absl::Status read_narrow(const TensorView& tensor, SafeDType same, int64_t first,
                         std::span<uint16_t> out, const Narrow& narrow) {
  if (tensor.dtype == same && as_stored(tensor)) {
    return read_raw(tensor, first, out);
  }
  float part[1024];
  for (size_t i = 0; i < out.size(); i += std::size(part)) {
    const size_t n = std::min(out.size() - i, std::size(part));
    const int64_t from = first + static_cast<int64_t>(i);
    TANDEM_RETURN_IF_ERROR(read(tensor, from, std::span<float>(part, n)));
    for (size_t k = 0; k < n; ++k) TANDEM_RETURN_IF_ERROR(narrow(part[k], &out[i + k]));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t stored_row(int64_t row, int64_t head_rows) {
  const int64_t half = head_rows / 2, in_head = row % head_rows;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

bool is_floating(SafeDType dtype) {
  return dtype == SafeDType::kF64 || dtype == SafeDType::kF32 || dtype == SafeDType::kF16 ||
         dtype == SafeDType::kBF16 || dtype == SafeDType::kF8E4M3;
}

// A sign, 4 bits of an exponent and 3 of a fraction (arXiv 2209.05433): no infinities, and NaN with
// all bits set.
float fp8_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return bits >> 7 != 0 ? -size : size;
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

absl::Status to_bfloat(const TensorView& tensor, int64_t first, std::span<uint16_t> out) {
  return read_narrow(tensor, SafeDType::kBF16, first, out, [](float v, uint16_t* to) {
    const auto bits = std::bit_cast<uint32_t>(v);
    *to = std::isnan(v) ? uint16_t{0x7fc0}
                        : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return absl::OkStatus();
  });
}

absl::Status to_half(const TensorView& tensor, int64_t first, std::span<uint16_t> out) {
  return read_narrow(tensor, SafeDType::kF16, first, out, [](float v, uint16_t* to) {
    const auto half = static_cast<_Float16>(v);
    *to = std::bit_cast<uint16_t>(half);
    if (std::isfinite(v) && std::isinf(static_cast<float>(half))) {
      return out_of_range("weight", v, "-65504 to 65504 in fp16");
    }
    return absl::OkStatus();
  });
}

}  // namespace tandem
