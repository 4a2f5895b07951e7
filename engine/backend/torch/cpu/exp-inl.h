// Vector e^x, for files that Highway compiles once per target.
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

// Double: saturates at e^709. Float: relative error under 2e-7, 0 below -87, saturates at e^88. NaN
// propagates. The bits are the same for every vector width.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> exp_of(D d, hwy::HWY_NAMESPACE::Vec<D> x) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (sizeof(hn::TFromD<D>) == sizeof(double)) {
    // Highway's Exp wraps around above 709.8.
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(hn::Set(d, 709.), x)));
  } else {
    const hn::RebindToSigned<D> di;
    const auto clamped = hn::Min(hn::Set(d, 88.f), x);  // Min in this operand order propagates NaN
    const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
    // x - n ln 2 (Cody-Waite): the first product is exact
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
