// How GGUF files pack the elements of a tensor: block types of ggml, and their values.
//
// Every value is a product that fp32 holds exactly, plus at most one rounding (`d s q - dmin m`),
// so whatever order computes it, the bits are those of ggml's and gguf-py's dequantization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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
  int values;        // elements of a block; a row is a whole number of blocks
  int bytes;         // of a block
  int halves[2];     // where its fp16 scales lie; -1: there is none
  // The values of one block. Any alignment.
  void (*decode)(const std::byte* block, float* values);
};

// Whether the scales of a block are finite numbers.
bool has_finite_scales(const BlockFormat& format, const std::byte* block);

// A type that has the same values in blocks of another one, as many to a block, which take more
// bytes: products know that one.
struct Widening {
  BlockType to;
  int bytes;  // of a block of it
  // Any alignment.
  void (*block)(const std::byte* from, std::byte* to);
};
const Widening* find_widening(BlockType type);  // null: none

// Null: not a type of weights, or one that is not read.
const BlockFormat* find_block_format(uint32_t ggml_type);

std::string ggml_type_text(uint32_t ggml_type);  // "IQ2_XS (17)", "99"
std::string block_format_names();                // "F32, F16, Q4_0, ..."

}  // namespace tandem
