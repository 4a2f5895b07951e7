#include "engine/backend/torch/cpu/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/backend/torch/cpu/product_tiles.h"
#include "engine/backend/torch/cpu/weight_memory.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

int64_t element_bytes(WeightType type) {
  switch (type) {
    case WeightType::kDouble:
      return 8;
    case WeightType::kFloat:
      return 4;
    case WeightType::kInt8:
      return 1;
    default:
      return 2;
  }
}

}  // namespace

PackedMatrix::PackedMatrix(WeightType type, int64_t outs, int64_t in, Layout layout)
    : type_(type), outs_(outs), in_(in), layout_(layout) {
  const int64_t sides = layout == Layout::kPairs ? 2 : 1;
  TANDEM_CHECK(outs > 0 && in > 0 && outs % sides == 0);
  const TileShape shape = tile_shape(type);
  columns_ = shape.columns;
  inputs_ = shape.inputs;
  side_ = outs / sides;
  run_ = columns_ / sides;
  const int64_t padded_in = (in + inputs_ - 1) / inputs_ * inputs_;
  panel_bytes_ = padded_in * columns_ * element_bytes(type);
  const auto bytes = static_cast<size_t>(panels() * panel_bytes_);
  data_ = allocate_weights(bytes);
  // Clear the padding.
  if (panels() * columns_ != outs || padded_in != in) {
    const auto last = static_cast<size_t>((panels() - 1) * panel_bytes_);
    const size_t from = padded_in != in ? 0 : last;
    std::memset(data_.get() + from, 0, bytes - from);
  }
  if (type == WeightType::kInt8) scales_.assign(static_cast<size_t>(panels() * columns_), 0.f);
}

int64_t PackedMatrix::bytes() const {
  return panels() * panel_bytes_ + static_cast<int64_t>(scales_.size() * sizeof(float));
}

int64_t PackedMatrix::offset(int64_t row, int64_t k) const {
  const int64_t all = this->column(row);
  const int64_t column = all % columns_;
  const int64_t panel = all / columns_ * (panel_bytes_ / element_bytes(type_));
  if (type_ == WeightType::kBFloat16 && inputs_ == 1) {
    const int64_t half = columns_ / 2;
    return panel + k * columns_ + 2 * (column % half) + column / half;
  }
  return panel + k / inputs_ * (inputs_ * columns_) + inputs_ * column + k % inputs_;
}

void PackedMatrix::pack(int64_t first, int64_t n, const void* from) {
  TANDEM_CHECK(first >= 0 && n >= 0 && first + n <= outs_);
  // Process a few inputs of all rows of a panel at a time, so that writes are contiguous.
  constexpr int64_t kInputs = 64;  // a multiple of inputs_
  const auto copy = [&]<class T>(T* to) {
    const T* source = static_cast<const T*>(from);
    for (int64_t row = first; row < first + n;) {
      const int64_t in_panel = std::min(run_ - row % side_ % run_, side_ - row % side_);
      const int64_t end = std::min(first + n, row + in_panel);
      for (int64_t k0 = 0; k0 < in_; k0 += kInputs) {
        const int64_t k1 = std::min(in_, k0 + kInputs);
        for (int64_t r = row; r < end; ++r) {
          const T* at = source + (r - first) * in_;
          T* out = to + offset(r, k0);
          for (int64_t k = k0; k < k1; k += inputs_, out += inputs_ * columns_) {
            for (int64_t j = 0; j < inputs_ && k + j < k1; ++j) out[j] = at[k + j];
          }
        }
      }
      row = end;
    }
  };
  if (type_ == WeightType::kDouble) return copy(reinterpret_cast<double*>(data_.get()));
  if (type_ == WeightType::kFloat) return copy(reinterpret_cast<float*>(data_.get()));
  if (type_ != WeightType::kInt8) return copy(reinterpret_cast<uint16_t*>(data_.get()));
  auto* to = reinterpret_cast<int8_t*>(data_.get());
  const int shift = int8_shift();
  for (int64_t r = first; r < first + n; ++r) {
    const float* at = static_cast<const float*>(from) + (r - first) * in_;
    float most = 0;
    for (int64_t k = 0; k < in_; ++k) most = std::max(most, std::abs(at[k]));
    const float scale = most > 0 ? most / 127 : 1.f;
    scales_[static_cast<size_t>(column(r))] = scale;
    for (int64_t k = 0; k < in_; ++k) {
      to[offset(r, k)] = static_cast<int8_t>(std::lrint(at[k] / scale) + shift);
    }
  }
}

void PackedMatrix::unpack(int64_t row, double* to) const {
  if (type_ == WeightType::kDouble) {
    const auto* from = reinterpret_cast<const double*>(data_.get()) + offset(row, 0);
    for (int64_t k = 0; k < in_; ++k) to[k] = from[k * columns_];
    return;
  }
  std::vector<float> narrow(static_cast<size_t>(in_));
  unpack(row, narrow.data());
  std::copy(narrow.begin(), narrow.end(), to);
}

void PackedMatrix::unpack(int64_t row, float* to) const {
  TANDEM_CHECK(row >= 0 && row < outs_);
  const auto each = [&]<class T>(const T* data, const auto& widen) {
    const T* from = data + offset(row, 0);
    for (int64_t k = 0; k < in_; k += inputs_, from += inputs_ * columns_) {
      for (int64_t j = 0; j < inputs_ && k + j < in_; ++j) to[k + j] = widen(from[j]);
    }
  };
  switch (type_) {
    case WeightType::kFloat:
      return each(reinterpret_cast<const float*>(data_.get()), [](float v) { return v; });
    case WeightType::kDouble:
      return each(reinterpret_cast<const double*>(data_.get()),
                  [](double v) { return static_cast<float>(v); });
    case WeightType::kBFloat16:
      return each(reinterpret_cast<const uint16_t*>(data_.get()),
                  [](uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); });
    case WeightType::kHalf:
      return each(reinterpret_cast<const uint16_t*>(data_.get()),
                  [](uint16_t v) { return static_cast<float>(std::bit_cast<_Float16>(v)); });
    case WeightType::kInt8: {
      const float scale = scales_[static_cast<size_t>(column(row))];
      const int shift = int8_shift();
      return each(reinterpret_cast<const int8_t*>(data_.get()), [=](int8_t v) {
        return scale * static_cast<float>(static_cast<int8_t>(v - shift));
      });
    }
  }
}

}  // namespace tandem::cpu
