// Vector activations, for files that Highway compiles once per target.
#if defined(TANDEM_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_ACTIVATION_INL_H_
#undef TANDEM_CPU_ACTIVATION_INL_H_
#else
#define TANDEM_CPU_ACTIVATION_INL_H_
#endif

#include "engine/backend/torch/cpu/activation.h"
#include "engine/backend/torch/cpu/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {

// activation(x) per element, as the scalar activated() computes it.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> activated(D d, hwy::HWY_NAMESPACE::Vec<D> x,
                                                Activation kind) {
  namespace hn = hwy::HWY_NAMESPACE;
  using A = hn::TFromD<D>;
  const auto one = hn::Set(d, A{1});
  switch (kind) {
    case Activation::kSilu:
      return hn::Div(x, hn::Add(one, exp_of(d, hn::Neg(x))));
    case Activation::kGeluTanh: {
      const auto slope = hn::MulAdd(hn::Set(d, static_cast<A>(kGeluCubic)), hn::Mul(x, x),
                                    hn::Set(d, static_cast<A>(kGeluLinear)));
      return hn::Div(x, hn::Add(one, exp_of(d, hn::Neg(hn::Mul(x, slope)))));
    }
    case Activation::kRelu:
      return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
    case Activation::kGelu:
      break;
  }
  HWY_ALIGN A some[hn::MaxLanes(D())];
  hn::Store(x, d, some);
  for (size_t i = 0; i < hn::Lanes(d); ++i) some[i] = cpu::activated<Activation::kGelu>(some[i]);
  return hn::Load(d, some);
}

}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
