#include "engine/backend/torch/weights/gguf/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/load.h"

namespace tandem {
namespace {

float half(const std::byte* at) { return static_cast<float>(load<_Float16>(at)); }
int u8(const std::byte* at) { return static_cast<int>(*at); }
int low(const std::byte* at) { return u8(at) & 15; }
int high(const std::byte* at) { return u8(at) >> 4; }
int bits(const std::byte* at, int shift, int count) { return u8(at) >> shift & ((1 << count) - 1); }

// Codebook of the non-linear 4-bit types.
constexpr std::array<int, 16> kNonLinear{-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

void decode_f32(const std::byte* block, float* out) { *out = load<float>(block); }
void decode_f16(const std::byte* block, float* out) { *out = half(block); }
void decode_bf16(const std::byte* block, float* out) {
  *out = std::bit_cast<float>(uint32_t{load<uint16_t>(block)} << 16);
}

// d; 16 bytes: low nibbles are elements 0..15, high nibbles 16..31.
void decode_q4_0(const std::byte* block, float* out) {
  const float d = half(block);
  const std::byte* q = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(q + i) - 8);
    out[i + 16] = d * static_cast<float>(high(q + i) - 8);
  }
}

void decode_q4_1(const std::byte* block, float* out) {
  const float d = half(block), m = half(block + 2);
  const std::byte* q = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(q + i)) + m;
    out[i + 16] = d * static_cast<float>(high(q + i)) + m;
  }
}

// Fifth bits are in one little-endian word: bit i belongs to element i.
int fifth(uint32_t word, int i) { return static_cast<int>(word >> i & 1) << 4; }

void decode_q5_0(const std::byte* block, float* out) {
  const float d = half(block);
  const auto word = load<uint32_t>(block + 2);
  const std::byte* q = block + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((low(q + i) | fifth(word, i)) - 16);
    out[i + 16] = d * static_cast<float>((high(q + i) | fifth(word, i + 16)) - 16);
  }
}

void decode_q5_1(const std::byte* block, float* out) {
  const float d = half(block), m = half(block + 2);
  const auto word = load<uint32_t>(block + 4);
  const std::byte* q = block + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(q + i) | fifth(word, i)) + m;
    out[i + 16] = d * static_cast<float>(high(q + i) | fifth(word, i + 16)) + m;
  }
}

void decode_q8_0(const std::byte* block, float* out) {
  const float d = half(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
}

// 16 bytes of scale (low nibble) and minimum (high) per 16 elements; 64 bytes, each 32 of which
// hold elements l, l + 32, l + 64 and l + 96 in ascending bit pairs; d, dmin.
void decode_q2_k(const std::byte* block, float* out) {
  const std::byte* q = block + 16;
  const float d = half(block + 80), dmin = half(block + 82);
  for (int i = 0; i < 256; ++i) {
    const std::byte* s = block + i / 16;
    const int code = bits(q + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2);
    out[i] = d * static_cast<float>(low(s)) * static_cast<float>(code) -
             dmin * static_cast<float>(high(s));
  }
}

// 32 bytes of third bits (bit i / 32 of byte i % 32), low bits as in Q2_K, 16 scales of 6 bits,
// offset 32.
int q3_k_scale(const std::byte* block, int g) {
  const std::byte* scales = block + 96;
  return (bits(scales + g % 8, g / 8 * 4, 4) | bits(scales + 8 + g % 4, g / 4 * 2, 2) << 4) - 32;
}
int q3_k_code(const std::byte* block, int i) {
  return bits(block + 32 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2) -
         (bits(block + i % 32, i / 32, 1) == 0 ? 4 : 0);
}
void decode_q3_k(const std::byte* block, float* out) {
  const float d = half(block + 108);
  for (int i = 0; i < 256; ++i) {
    out[i] =
        d * static_cast<float>(q3_k_scale(block, i / 16)) * static_cast<float>(q3_k_code(block, i));
  }
}

// 6-bit scale and minimum of the g-th 32 elements. Groups 0..3 are in bytes 0..7. Groups 4..7 have
// their low four bits in the nibbles of bytes 8..11 and their upper two in the top bits of bytes
// 0..7.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin scale_and_min(const std::byte* packed, int g) {
  if (g < 4) return {bits(packed + g, 0, 6), bits(packed + g + 4, 0, 6)};
  return {low(packed + g + 4) | bits(packed + g - 4, 6, 2) << 4,
          high(packed + g + 4) | bits(packed + g, 6, 2) << 4};
}

// Each 32 bytes hold 64 elements, the first 32 in low nibbles.
int nibble(const std::byte* q, int i) { return bits(q + i / 64 * 32 + i % 32, i % 64 / 32 * 4, 4); }

// Groups of 32 elements. code(i): of element i.
template <class Code>
void decode_scaled_groups(const std::byte* block, float* out, Code code) {
  const float d = half(block), dmin = half(block + 2);
  for (int g = 0; g < 8; ++g) {
    const auto [scale, min] = scale_and_min(block + 4, g);
    const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(min);
    for (int i = 32 * g; i < 32 * g + 32; ++i) out[i] = s * static_cast<float>(code(i)) - m;
  }
}

void decode_q4_k(const std::byte* block, float* out) {
  decode_scaled_groups(block, out, [=](int i) { return nibble(block + 16, i); });
}

// As Q4_K, with the fifth bits after the scales: bit i / 32 of byte i % 32.
void decode_q5_k(const std::byte* block, float* out) {
  decode_scaled_groups(block, out, [=](int i) {
    return nibble(block + 48, i) | bits(block + 16 + i % 32, i / 32, 1) << 4;
  });
}

// Per 128 elements: 64 bytes of low four bits (l and l + 64, l < 64), then 32 bytes of upper two
// bits (l, l + 32, l + 64, l + 96). Scales are signed bytes.
void decode_q6_k(const std::byte* block, float* out) {
  const std::byte *lows = block, *highs = block + 128, *scales = block + 192;
  const float d = half(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half_block = i / 128, l = i % 128;
    const int code = bits(lows + half_block * 64 + l % 64, l / 64 * 4, 4) |
                     bits(highs + half_block * 32 + l % 32, l / 32 * 2, 2) << 4;
    const auto scale = static_cast<int8_t>(scales[i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>(code - 32);
  }
}

void decode_non_linear(float d, const std::byte* q, float* out) {
  for (size_t i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kNonLinear[static_cast<size_t>(low(q + i))]);
    out[i + 16] = d * static_cast<float>(kNonLinear[static_cast<size_t>(high(q + i))]);
  }
}

void decode_iq4_nl(const std::byte* block, float* out) {
  decode_non_linear(half(block), block + 2, out);
}

// d, upper two bits of 8 scales, their lower four bits, then 16 bytes per 32 elements.
void decode_iq4_xs(const std::byte* block, float* out) {
  const float d = half(block);
  const int uppers = load<uint16_t>(block + 2);
  for (int g = 0; g < 8; ++g) {
    const int s = bits(block + 4 + g / 2, g % 2 * 4, 4) | (uppers >> 2 * g & 3) << 4;
    decode_non_linear(d * static_cast<float>(s - 32), block + 8 + 16 * g, out + 32 * g);
  }
}

// Q6_K values are d * scale * (code - 32).
void q3_k_to_q6_k(const std::byte* from, std::byte* to) {
  std::fill_n(to, 192, std::byte{0});
  for (int i = 0; i < 256; ++i) {
    const int half_block = i / 128, l = i % 128, code = q3_k_code(from, i) + 32;
    to[half_block * 64 + l % 64] |= static_cast<std::byte>((code & 15) << l / 64 * 4);
    to[128 + half_block * 32 + l % 32] |= static_cast<std::byte>(code >> 4 << l / 32 * 2);
  }
  for (int g = 0; g < 16; ++g) to[192 + g] = static_cast<std::byte>(q3_k_scale(from, g));
  std::memcpy(to + 208, from + 108, 2);
}

// Q8_0 codes are arbitrary bytes.
void iq4_nl_to_q8_0(const std::byte* from, std::byte* to) {
  std::memcpy(to, from, 2);
  for (int i = 0; i < 16; ++i) {
    const auto code = [](int number) {
      return static_cast<std::byte>(kNonLinear[static_cast<size_t>(number)]);
    };
    to[2 + i] = code(low(from + 2 + i));
    to[18 + i] = code(high(from + 2 + i));
  }
}

constexpr Widening kQ3KToQ6K{BlockType::kQ6K, 210, q3_k_to_q6_k};
constexpr Widening kIq4NlToQ80{BlockType::kQ80, 34, iq4_nl_to_q8_0};

constexpr std::array<BlockFormat, 15> kFormats{{
    {BlockType::kF32, "F32", 1, 4, {-1, -1}, decode_f32, {}},
    {BlockType::kF16, "F16", 1, 2, {-1, -1}, decode_f16, {}},
    {BlockType::kBF16, "BF16", 1, 2, {-1, -1}, decode_bf16, {}},
    {BlockType::kQ40, "Q4_0", 32, 18, {0, -1}, decode_q4_0, QuantType::kQ40},
    {BlockType::kQ41, "Q4_1", 32, 20, {0, 2}, decode_q4_1, QuantType::kQ41},
    {BlockType::kQ50, "Q5_0", 32, 22, {0, -1}, decode_q5_0, QuantType::kQ50},
    {BlockType::kQ51, "Q5_1", 32, 24, {0, 2}, decode_q5_1, QuantType::kQ51},
    {BlockType::kQ80, "Q8_0", 32, 34, {0, -1}, decode_q8_0, QuantType::kQ80},
    {BlockType::kQ2K, "Q2_K", 256, 84, {80, 82}, decode_q2_k, {}},
    {BlockType::kQ3K, "Q3_K", 256, 110, {108, -1}, decode_q3_k, {}},
    {BlockType::kQ4K, "Q4_K", 256, 144, {0, 2}, decode_q4_k, QuantType::kQ4K},
    {BlockType::kQ5K, "Q5_K", 256, 176, {0, 2}, decode_q5_k, QuantType::kQ5K},
    {BlockType::kQ6K, "Q6_K", 256, 210, {208, -1}, decode_q6_k, QuantType::kQ6K},
    {BlockType::kIq4Nl, "IQ4_NL", 32, 18, {0, -1}, decode_iq4_nl, {}},
    {BlockType::kIq4Xs, "IQ4_XS", 256, 136, {0, -1}, decode_iq4_xs, {}},
}};

static_assert(std::all_of(kFormats.begin(), kFormats.end(), [](const BlockFormat& f) {
  if (!f.quant) return true;
  const QuantFormat q = quant_format(*f.quant);
  return q.inputs() == f.values && q.block_bytes() == f.bytes;
}));

// Names for messages about unsupported types. Null: removed from ggml.
constexpr std::array<const char*, 41> kNames{
    "F32",     "F16",   "Q4_0",   "Q4_1",  nullptr, nullptr,  "Q5_0",  "Q5_1",    "Q8_0",
    "Q8_1",    "Q2_K",  "Q3_K",   "Q4_K",  "Q5_K",  "Q6_K",   "Q8_K",  "IQ2_XXS", "IQ2_XS",
    "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",     "I32",
    "I64",     "F64",   "IQ1_M",  "BF16",  nullptr, nullptr,  nullptr, "TQ1_0",   "TQ2_0",
    nullptr,   nullptr, nullptr,  "MXFP4", "NVFP4"};

}  // namespace

const BlockFormat* find_block_format(uint32_t ggml_type) {
  const auto* it = std::find_if(kFormats.begin(), kFormats.end(), [&](const BlockFormat& f) {
    return static_cast<uint32_t>(f.type) == ggml_type;
  });
  return it == kFormats.end() ? nullptr : it;
}

const Widening* find_widening(BlockType type) {
  if (type == BlockType::kQ3K) return &kQ3KToQ6K;
  return type == BlockType::kIq4Nl ? &kIq4NlToQ80 : nullptr;
}

bool has_finite_scales(const BlockFormat& format, const std::byte* block) {
  return std::all_of(std::begin(format.halves), std::end(format.halves), [&](int at) {
    constexpr uint16_t kExponent = 0x7c00;  // exponent of infinity and NaN
    return at < 0 || (load<uint16_t>(block + at) & kExponent) != kExponent;
  });
}

std::string ggml_type_text(uint32_t ggml_type) {
  if (ggml_type >= kNames.size() || kNames[ggml_type] == nullptr) return absl::StrCat(ggml_type);
  return absl::StrCat(kNames[ggml_type], " (", ggml_type, ")");
}

std::string block_format_names() {
  std::string all;
  for (const BlockFormat& f : kFormats) absl::StrAppend(&all, all.empty() ? "" : ", ", f.name);
  return all;
}

}  // namespace tandem
