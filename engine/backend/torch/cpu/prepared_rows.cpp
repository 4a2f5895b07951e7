#include "engine/backend/torch/cpu/prepared_rows.h"

#include <algorithm>

#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Numbers that make a range worth handing to another thread.
constexpr int64_t kShare = 1 << 15;

}  // namespace

RowType row_type(WeightType weight) {
  return weight == WeightType::kInt8     ? RowType::kInt16
         : weight == WeightType::kDouble ? RowType::kDouble
                                         : RowType::kFloat;
}

// x: [rows, units]
template <class T>
void PreparedRows::set(RowType type, const T* x, int64_t rows, int64_t in, int64_t units) {
  TANDEM_CHECK(rows > 0 && in > 0);
  type_ = type;
  rows_ = rows;
  in_ = in;
  const int64_t most = tile_shape(type == RowType::kInt16    ? WeightType::kInt8
                                  : type == RowType::kDouble ? WeightType::kDouble
                                                             : WeightType::kFloat)
                           .rows;
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
      interleave_rows(packed + r * units, x + r * units, first_row(g + 1) - r, units);
    }
  });
}

void PreparedRows::prepare(RowType type, const float* x, int64_t rows, int64_t in) {
  if (type == RowType::kFloat) return set(type, x, rows, in, in);
  TANDEM_CHECK(type == RowType::kInt16);
  const int64_t units = (in + 1) / 2;
  const auto count = static_cast<size_t>(rows * units * 2);
  if (narrow_.size() < count) narrow_.resize(count);
  if (scales_.size() < static_cast<size_t>(rows)) scales_.resize(static_cast<size_t>(rows));
  parallel_for(rows, std::max<int64_t>(1, kShare / in), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      scales_[static_cast<size_t>(r)] =
          quantize_row(narrow_.data() + r * units * 2, x + r * in, in);
    }
  });
  set(type, reinterpret_cast<const int32_t*>(narrow_.data()), rows, in, units);
}

void PreparedRows::prepare(const double* x, int64_t rows, int64_t in) {
  set(RowType::kDouble, x, rows, in, in);
}

const std::byte* PreparedRows::group(int64_t i) const { return data_ + first_row(i) * row_bytes_; }

}  // namespace tandem::cpu
