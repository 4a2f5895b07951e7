// e^x of vectors, for files that Highway compiles once per processor.
#if defined(TANDEM_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_EXP_INL_H_
#undef TANDEM_CPU_EXP_INL_H_
#else
#define TANDEM_CPU_EXP_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {

// In double: saturating at e^709. In float: relative error under 2e-7; 0 below -87, saturating at
// e^88. NaN stays NaN. The same bits in vectors of any width.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> exp_of(D d, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (sizeof(hn::TFromD<D>) == sizeof(double)) {
    // Above 709.8 Highway's wraps around.
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(hn::Set(d, 709.), x)));
  } else {
    const hn::RebindToSigned<D> di;
    const auto clamped = hn::Min(hn::Set(d, 88.f), x);  // x where either is NaN
    const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
    // x - n ln 2 in two parts, exact in the first
    auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
    auto p = hn::Set(d, 1.9875691500e-4f);
    p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
    p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
    p = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), hn::Set(d, 1.f));
    const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.f)), hn::Mul(p, hn::BitCast(d, power)));
  }
}

}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
