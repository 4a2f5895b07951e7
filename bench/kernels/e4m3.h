// Numbers of fp8 (e4m3), the reference of the kernel that rounds rows to them.
#pragma once

#include <cmath>
#include <limits>

namespace tandem::cuda {

// The number that a code of e4m3 stands for.
inline double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

// The nearest code; of two, the even one.
inline int nearest_e4m3(float x) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double away = std::abs(e4m3(code) - std::abs(double{x}));
    const double least = std::abs(e4m3(best) - std::abs(double{x}));
    if (away < least || (away == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

}  // namespace tandem::cuda
