// Quantized weight formats that have product kernels, for CPU and CUDA.
//
//   value = d (q - zero)      Q4_0, Q5_0, Q8_0: scale d per 32 inputs
//         = d q + m           Q4_1, Q5_1: scale d and minimum m per 32 inputs
//         = d s q - dmin n    Q4_K, Q5_K: d and dmin per 256 inputs, 6-bit s and n per 32
//         = d s (q - zero)    Q6_K: d per 256 inputs, 8-bit s per 16
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif

namespace tandem {

enum class QuantType : uint8_t { kQ40, kQ41, kQ50, kQ51, kQ80, kQ4K, kQ5K, kQ6K };

// value = scale (q - zero) - less, with scale and less from:
enum class QuantScales : uint8_t {
  kScale,        // fp16 scale per 32 inputs
  kScaleAndMin,  // fp16 scale and minimum per 32 inputs
  kTwoLevels,    // fp16 d and dmin per 256 inputs, a 6-bit factor for each per 32
  kSixteens,     // fp16 d per 256 inputs, a signed 8-bit factor per 16
};

struct QuantFormat {
  QuantType type;
  int bits;  // per code
  QuantScales scales;
  int zero;  // 0 for formats with a minimum; Q8_0: codes are stored + 128

  // Inputs per block.
  TANDEM_HOST_DEVICE constexpr int inputs() const {
    return scales == QuantScales::kTwoLevels || scales == QuantScales::kSixteens ? 256 : 32;
  }
  // Bytes of a block in a file: all, and of its scales.
  TANDEM_HOST_DEVICE constexpr int block_bytes() const {
    return scale_bytes() + inputs() * bits / 8;
  }
  TANDEM_HOST_DEVICE constexpr int scale_bytes() const {
    return scales == QuantScales::kScale         ? 2
           : scales == QuantScales::kScaleAndMin ? 4
           : scales == QuantScales::kTwoLevels   ? 16
                                                 : 18;
  }
};

TANDEM_HOST_DEVICE constexpr QuantFormat quant_format(QuantType type) {
  switch (type) {
    case QuantType::kQ40:
      return {type, 4, QuantScales::kScale, 8};
    case QuantType::kQ41:
      return {type, 4, QuantScales::kScaleAndMin, 0};
    case QuantType::kQ50:
      return {type, 5, QuantScales::kScale, 16};
    case QuantType::kQ51:
      return {type, 5, QuantScales::kScaleAndMin, 0};
    case QuantType::kQ80:
      return {type, 8, QuantScales::kScale, 128};
    case QuantType::kQ4K:
      return {type, 4, QuantScales::kTwoLevels, 0};
    case QuantType::kQ5K:
      return {type, 5, QuantScales::kTwoLevels, 0};
    case QuantType::kQ6K:
      break;
  }
  return {type, 6, QuantScales::kSixteens, 32};
}

// Calls f.operator()<type>().
template <class F>
auto for_quant_type(QuantType type, const F& f) {
  switch (type) {
    case QuantType::kQ40:
      return f.template operator()<QuantType::kQ40>();
    case QuantType::kQ41:
      return f.template operator()<QuantType::kQ41>();
    case QuantType::kQ50:
      return f.template operator()<QuantType::kQ50>();
    case QuantType::kQ51:
      return f.template operator()<QuantType::kQ51>();
    case QuantType::kQ80:
      return f.template operator()<QuantType::kQ80>();
    case QuantType::kQ4K:
      return f.template operator()<QuantType::kQ4K>();
    case QuantType::kQ5K:
      return f.template operator()<QuantType::kQ5K>();
    case QuantType::kQ6K:
      break;
  }
  return f.template operator()<QuantType::kQ6K>();
}

}  // namespace tandem
