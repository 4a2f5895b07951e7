#include "engine/backend/torch/cpu/prepared_rows.h"

#include <algorithm>
#include <cstring>

#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Numbers that make a range worth handing to another thread.
constexpr int64_t kShare = 1 << 15;

// to[i * rows + r] = from[r * n + i], for some inputs of all rows at a time, so that what is
// written lies together.
template <class T>
void interleave_one_by_one(T* to, const T* from, int64_t rows, int64_t n) {
  constexpr int64_t kInputs = 16;
  for (int64_t i = 0; i < n; i += kInputs) {
    const int64_t end = std::min(n, i + kInputs);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = i; j < end; ++j) to[j * rows + r] = from[r * n + j];
    }
  }
}

void interleave(double* to, const double* from, int64_t rows, int64_t n) {
  interleave_one_by_one(to, from, rows, n);
}

// T: of 32 bits. Four rows by four inputs at a time; the last four rows may be some for the second
// time.
template <class T>
void interleave(T* to, const T* from, int64_t rows, int64_t n) {
  using Four = uint32_t __attribute__((ext_vector_type(4)));
  if (rows < 4) return interleave_one_by_one(to, from, rows, n);
  const int64_t whole = n / 4 * 4;
  for (int64_t done = 0; done < rows; done += 4) {
    const int64_t r = std::min(done, rows - 4);
    for (int64_t i = 0; i < whole; i += 4) {
      Four v[4];
      for (int64_t j = 0; j < 4; ++j) std::memcpy(&v[j], from + (r + j) * n + i, sizeof v[j]);
      const Four a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
      const Four b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
      const Four c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
      const Four d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
      const Four turned[4] = {
          __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
          __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
      for (int64_t j = 0; j < 4; ++j) std::memcpy(to + (i + j) * rows + r, &turned[j], sizeof a);
    }
    for (int64_t i = whole; i < n; ++i) {
      for (int64_t j = r; j < r + 4; ++j) to[i * rows + j] = from[j * n + i];
    }
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

// x: [rows, units]
template <class T>
void PreparedRows::set(RowType type, const T* x, int64_t rows, int64_t in, int64_t units) {
  TANDEM_CHECK(rows > 0 && in > 0);
  type_ = type;
  rows_ = rows;
  in_ = in;
  const int64_t most =
      tile_shape(type == RowType::kDouble ? WeightType::kDouble : WeightType::kFloat).rows;
  groups_ = (rows + most - 1) / most;
  row_bytes_ = units * static_cast<int64_t>(sizeof(T));
  if (rows == 1) {
    data_ = reinterpret_cast<const std::byte*>(x);
    return;
  }
  const auto doubles = static_cast<size_t>((rows * row_bytes_ + 7) / 8);
  if (packed_.size() < doubles) packed_.resize(doubles);
  data_ = reinterpret_cast<const std::byte*>(packed_.data());
  T* packed = reinterpret_cast<T*>(packed_.data());
  const int64_t grain = std::max<int64_t>(1, kShare * groups_ / (rows * units));
  parallel_for(groups_, grain, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t r = first_row(g);
      interleave(packed + r * units, x + r * units, first_row(g + 1) - r, units);
    }
  });
}

// row(to, r): makes row r, of so many words of 32 bits.
template <class Row>
void PreparedRows::narrow(RowType type, int64_t rows, int64_t in, int64_t words, const Row& row) {
  if (const auto n = static_cast<size_t>(rows * words); narrow_.size() < n) narrow_.resize(n);
  parallel_for(rows, std::max<int64_t>(1, kShare / in), [&](int64_t r, int64_t end) {
    for (; r < end; ++r) row(narrow_.data() + r * words, r);
  });
  set(type, narrow_.data(), rows, in, words);
}

void PreparedRows::prepare(RowType type, const float* x, int64_t rows, int64_t in) {
  switch (type) {
    case RowType::kFloat:
      return set(type, x, rows, in, in);
    case RowType::kBFloat16:
      return narrow(type, rows, in, (in + 1) / 2, [&](int32_t* to, int64_t r) {
        round_row(reinterpret_cast<uint16_t*>(to), x + r * in, in);
      });
    case RowType::kInt8:
      return narrow(type, rows, in, quantized_row_size(in),
                    [&](int32_t* to, int64_t r) { quantize_row(to, x + r * in, in); });
    case RowType::kInt16:
      scales_.resize(std::max(scales_.size(), static_cast<size_t>(rows)));
      return narrow(type, rows, in, (in + 1) / 2, [&](int32_t* to, int64_t r) {
        scales_[static_cast<size_t>(r)] =
            quantize_row(reinterpret_cast<int16_t*>(to), x + r * in, in);
      });
    case RowType::kDouble:
      break;
  }
  TANDEM_CHECK(type != RowType::kDouble);
}

void PreparedRows::prepare(const double* x, int64_t rows, int64_t in) {
  set(RowType::kDouble, x, rows, in, in);
}

const std::byte* PreparedRows::group(int64_t i) const { return data_ + first_row(i) * row_bytes_; }

}  // namespace tandem::cpu
