// ggml's block types and their values.
//
// Every value is exact in fp32 or has one rounding (`d s q - dmin m`). Its bits therefore equal
// those of ggml's and gguf-py's dequantization, whatever the order of evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/backend/torch/quant_format.h"

namespace tandem {

enum class BlockType : uint32_t {  // ggml's numbers
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ50 = 6,
  kQ51 = 7,
  kQ80 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBF16 = 30,
};

struct BlockFormat {
  BlockType type;
  const char* name;  // "Q4_K"
  int values;        // elements per block; rows consist of whole blocks
  int bytes;         // per block
  int halves[2];     // offsets of fp16 scales; -1: none
  // Decodes one block. Any alignment.
  void (*decode)(const std::byte* block, float* values);
  std::optional<QuantType> quant;  // nullopt: no product kernels
};

// Whether a block's scales are finite.
bool has_finite_scales(const BlockFormat& format, const std::byte* block);

// Lossless conversion of a type without product kernels to a larger type that has them. Blocks have
// the same number of elements.
struct Widening {
  BlockType to;
  int bytes;  // per block of the larger type
  // Any alignment.
  void (*block)(const std::byte* from, std::byte* to);
};
const Widening* find_widening(BlockType type);  // null: none

// Null: unknown or unsupported type.
const BlockFormat* find_block_format(uint32_t ggml_type);

std::string ggml_type_text(uint32_t ggml_type);  // "IQ2_XS (17)", "99"
std::string block_format_names();                // "F32, F16, Q4_0, ..."

}  // namespace tandem
