// Quantization to blocks of 4 or 8 bits (gguf/blocks.h), for --dtype int4 and q4_0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/backend/torch/weights/gguf/blocks.h"

namespace tandem {

// Quantizes a row to blocks of Q4_0, Q4_1 or Q8_0 at `to`. False: a value is not finite, or a scale
// overflows fp16. REQUIRES: values.size() is a multiple of 32; `to` has room for the row's blocks.
//
// Q4_0: scale by least squares for the best of several divisions of the largest magnitude.
// Q4_1: scale and minimum by least squares for the best of several divisions of the range into 15
// steps, as in llama.cpp. Q8_0: scale = max magnitude / 127.
// quick: Q4_0 with one of these divisions.
bool round_row(BlockType type, std::span<const float> values, std::byte* to, bool quick = false);

}  // namespace tandem
