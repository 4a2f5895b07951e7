// Elements of a checkpoint's tensors as floating-point numbers.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/safetensors.h"

namespace tandem {

bool is_floating(SafeDType dtype);  // F64, F32, F16, BF16: what convert can read

// Where row `row` lies in a file whose heads have `head_rows` rows in the order of
// TensorView::head_rows.
int64_t stored_row(int64_t row, int64_t head_rows);

float half_to_float(uint16_t bits);    // IEEE binary16, exact
float bfloat_to_float(uint16_t bits);  // exact

// Widens (F16, BF16), copies (F32), rounds to nearest (F64) or decodes (blocks) elements first ..
// first + out.size() - 1 of a tensor, in the model's order. Any alignment. INVALID_ARGUMENT: not
// floating, or a block whose scale is not finite; OUT_OF_RANGE: too few elements.
absl::Status to_float(const TensorView& tensor, int64_t first, std::span<float> out);
absl::Status to_double(const TensorView& tensor, int64_t first, std::span<double> out);

// The same as bits of bf16 and fp16, rounded to nearest, ties to even. INVALID_ARGUMENT too: a
// finite number that fp16 cannot hold.
absl::Status to_bfloat(const TensorView& tensor, int64_t first, std::span<uint16_t> out);
absl::Status to_half(const TensorView& tensor, int64_t first, std::span<uint16_t> out);

}  // namespace tandem
