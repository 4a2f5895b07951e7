// Numbers rounded to blocks of 4 or 8 bits (gguf_blocks.h): what --dtype int4 does at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/backend/torch/weights/gguf_blocks.h"

namespace tandem {

// A row of values as blocks of Q4_1 or Q8_0, at `to`. False: a value is not finite, or fp16 does
// not hold a scale. REQUIRES: values.size() is a multiple of 32; `to` has a row's bytes.
//
// Q4_1: scale and minimum are the least squares' for the best of some ways to divide the block's
// range into 15 steps, as llama.cpp searches them. Q8_0: 127 is the largest magnitude.
bool round_row(BlockType type, std::span<const float> values, std::byte* to);

}  // namespace tandem
