// Conversion of tensor elements to floating-point types.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/backend/torch/weights/safetensors/safetensors.h"

namespace tandem {

// The types that this file converts.
inline constexpr const char* kFloatingTypes = "F64 F32 F16 BF16 F8_E4M3";
bool is_floating(SafeDType dtype);

// Row of the file that holds row `row` of the model, for heads of `head_rows` rows in the order of
// TensorView::head_rows.
int64_t stored_row(int64_t row, int64_t head_rows);

float half_to_float(uint16_t bits);    // IEEE binary16, exact
float bfloat_to_float(uint16_t bits);  // exact
float fp8_to_float(uint8_t bits);      // F8_E4M3, exact

// Converts elements first .. first + out.size() - 1, in the model's order: widens F16, BF16 and
// F8_E4M3, copies F32, rounds F64 to nearest, decodes blocks. Any alignment. INVALID_ARGUMENT: not
// floating, or a block with a non-finite scale. OUT_OF_RANGE: too few elements.
absl::Status to_float(const TensorView& tensor, int64_t first, std::span<float> out);
absl::Status to_double(const TensorView& tensor, int64_t first, std::span<double> out);

// The same to bf16 and fp16 bits, rounded to nearest, ties to even. Also INVALID_ARGUMENT: a finite
// number overflows fp16.
absl::Status to_bfloat(const TensorView& tensor, int64_t first, std::span<uint16_t> out);
absl::Status to_half(const TensorView& tensor, int64_t first, std::span<uint16_t> out);

}  // namespace tandem
