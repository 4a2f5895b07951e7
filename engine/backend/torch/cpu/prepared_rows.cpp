#include "engine/backend/torch/cpu/prepared_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/quantized_tiles.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Transposes: to[i * rows + r] = from[r * n + i].
void interleave(double* to, const double* from, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < rows; ++r) to[i * rows + r] = from[r * n + i];
  }
}

// Transposes kRows rows, four inputs at a time. T: a 32-bit type.
template <int kRows, class T>
void interleave_some(T* to, const T* from, int64_t rows, int64_t n) {
  using Four = uint32_t __attribute__((ext_vector_type(4)));
  const int64_t whole = n / 4 * 4;
  for (int64_t i = 0; i < whole; i += 4) {
    Four v[4] = {};
    for (int64_t j = 0; j < kRows; ++j) std::memcpy(&v[j], from + j * n + i, sizeof v[j]);
    const Four a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    const Four b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    const Four c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const Four d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    const Four turned[4] = {
        __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
        __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
    for (int64_t j = 0; j < 4; ++j) {
      std::memcpy(to + (i + j) * rows, &turned[j], kRows * sizeof(T));
    }
  }
  for (int64_t i = whole; i < n; ++i) {
    for (int64_t j = 0; j < kRows; ++j) to[i * rows + j] = from[j * n + i];
  }
}

template <class T>
void interleave(T* to, const T* from, int64_t rows, int64_t n) {
  if (rows == 1) {
    std::copy_n(from, n, to);
    return;
  }
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) interleave_some<4>(to + r, from + r * n, rows, n);
  to += r;
  from += r * n;
  switch (rows - r) {
    case 1:
      return interleave_some<1>(to, from, rows, n);
    case 2:
      return interleave_some<2>(to, from, rows, n);
    case 3:
      return interleave_some<3>(to, from, rows, n);
    default:
      return;
  }
}

// Transposes units of `adjacent` words.
void interleave_units(int32_t* to, const int32_t* from, int64_t rows, int64_t n, int64_t adjacent) {
  if (adjacent == 1) return interleave(to, from, rows, n);
  for (int64_t i = 0; i < n; i += adjacent) {
    for (int64_t r = 0; r < rows; ++r, to += adjacent) {
      std::copy_n(from + r * n + i, adjacent, to);
    }
  }
}

// Rows [first, first + n), with the norm applied.
template <class T>
const T* normed_rows(const Rows<T>& from, int64_t first, int64_t n, std::vector<T>& scratch) {
  const T* x = from.x + first * from.in;
  if (from.norm.kind == NormKind::kNone) return x;
  scratch.resize(static_cast<size_t>(n * from.in));
  for (int64_t i = 0; i < n; ++i) {
    norm_row(scratch.data() + i * from.in, x + i * from.in, from.norm, from.in);
  }
  return scratch.data();
}

// 32-bit words per row.
int64_t words(RowType type, int64_t in) {
  switch (type) {
    case RowType::kInt8:
      return quantized_row_size(in);
    case RowType::kInt8x32:
      return in / 32 * quantized_words();
    case RowType::kInt16:
    case RowType::kBFloat16:
      return (in + 1) / 2;
    default:
      return in;
  }
}

}  // namespace

RowType row_type(WeightType weight) {
  switch (weight) {
    case WeightType::kInt8:
      return tile_shape(weight).inputs == 4 ? RowType::kInt8 : RowType::kInt16;
    case WeightType::kDouble:
      return RowType::kDouble;
    case WeightType::kBFloat16:
      return tile_shape(weight).inputs == 2 ? RowType::kBFloat16 : RowType::kFloat;
    default:
      return RowType::kFloat;
  }
}

void PreparedRows::shape(RowType type, int64_t rows, int64_t in) {
  TANDEM_CHECK(rows > 0 && in > 0);
  type_ = type;
  rows_ = rows;
  in_ = in;
  const int64_t most =
      type == RowType::kInt8x32
          ? quantized_rows()
          : tile_shape(type == RowType::kDouble ? WeightType::kDouble : WeightType::kFloat).rows;
  groups_ = (rows + most - 1) / most;
  row_bytes_ = type == RowType::kDouble ? in * 8 : words(type, in) * 4;
  const auto doubles = static_cast<size_t>((rows * row_bytes_ + 7) / 8);
  if (packed_.size() < doubles) packed_.resize(doubles);
  data_ = reinterpret_cast<const std::byte*>(packed_.data());
  if (type == RowType::kInt16 && scales_.size() < static_cast<size_t>(rows)) {
    scales_.resize(static_cast<size_t>(rows));
  }
}

template <class T>
T* PreparedRows::packed(int64_t first_row) {
  return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(packed_.data()) +
                              first_row * row_bytes_);
}

void PreparedRows::fill(const Rows<double>& from, int64_t begin, int64_t end) {
  TANDEM_CHECK(type_ == RowType::kDouble);
  thread_local std::vector<double> normed;
  for (int64_t g = begin; g < end; ++g) {
    const int64_t r = first_row(g);
    const int64_t n = first_row(g + 1) - r;
    interleave(packed<double>(r), normed_rows(from, r, n, normed), n, in_);
  }
}

void PreparedRows::fill(const Rows<float>& from, int64_t begin, int64_t end) {
  TANDEM_CHECK(type_ != RowType::kDouble);
  thread_local std::vector<float> normed;
  thread_local std::vector<int32_t> narrow;
  const int64_t width = words(type_, in_);
  for (int64_t g = begin; g < end; ++g) {
    const int64_t r = first_row(g);
    const int64_t n = first_row(g + 1) - r;
    const float* x = normed_rows(from, r, n, normed);
    if (type_ == RowType::kFloat) {
      interleave(packed<float>(r), x, n, in_);
      continue;
    }
    narrow.resize(static_cast<size_t>(n * width));
    for (int64_t i = 0; i < n; ++i, x += in_) {
      int32_t* to = narrow.data() + i * width;
      if (type_ == RowType::kInt8x32) {
        quantize_groups(to, x, in_);
      } else if (type_ == RowType::kInt8) {
        quantize_row(to, x, in_);
      } else if (type_ == RowType::kInt16) {
        scales_[static_cast<size_t>(r + i)] = quantize_row(reinterpret_cast<int16_t*>(to), x, in_);
      } else {
        round_row(reinterpret_cast<uint16_t*>(to), x, in_);
      }
    }
    const int64_t adjacent = type_ == RowType::kInt8x32 ? adjacent_words() : 1;
    interleave_units(packed<int32_t>(r), narrow.data(), n, width, adjacent);
  }
}

template <class T>
void PreparedRows::prepare_all(RowType type, const Rows<T>& from) {
  shape(type, from.rows, from.in);
  const bool as_it_is = type == RowType::kFloat || type == RowType::kDouble;
  if (from.rows == 1 && from.norm.kind == NormKind::kNone && as_it_is) {
    data_ = reinterpret_cast<const std::byte*>(from.x);
  } else {
    fill(from, 0, groups_);
  }
}

void PreparedRows::prepare(RowType type, const Rows<float>& from) { prepare_all(type, from); }

void PreparedRows::prepare(RowType type, const Rows<double>& from) { prepare_all(type, from); }

const std::byte* PreparedRows::group(int64_t i) const { return data_ + first_row(i) * row_bytes_; }

}  // namespace tandem::cpu
