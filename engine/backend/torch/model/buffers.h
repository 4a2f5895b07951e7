// Memory for the rows of a batch that is kept from batch to batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <cstdint>

namespace tandem {

// Rows that memory is reserved for when `rows` are needed: few sizes, so that it rarely moves.
inline int64_t row_bucket(int64_t rows) {
  if (rows <= 64) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  return (rows + 63) / 64 * 64;
}

// [rows, width]
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(int64_t width, at::ScalarType type, at::Device device)
      : width_(width), options_(at::TensorOptions().dtype(type).device(device)) {}

  // The first `rows` rows; contents are undefined after more rows than ever before.
  at::Tensor& rows(int64_t rows) {
    if (rows != view_rows_) {
      view_rows_ = -1;  // in case memory runs out below
      if (!all_.defined() || all_.size(0) < rows) {
        view_ = all_ = at::Tensor();  // give back first
        all_ = at::empty({row_bucket(rows), width_}, options_);
      }
      view_ = all_.narrow(0, 0, rows);
      view_rows_ = rows;
    }
    return view_;
  }

 private:
  int64_t width_ = 0;
  at::TensorOptions options_;
  at::Tensor all_, view_;
  int64_t view_rows_ = -1;
};

}  // namespace tandem
