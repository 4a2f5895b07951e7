#include "engine/backend/torch/cpu/product_tiles.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/torch/cpu/product_tiles.cpp"
#include "hwy/foreach_target.h"  // compiles this file once per target
// Included after foreach_target.h:
#include "engine/backend/torch/cpu/activation-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Registers of a tile: two sums per row, two weights, and one broadcast input.
#if HWY_TARGET <= HWY_AVX3  // 32 registers
constexpr int kMaxRows = 14;
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 4 ? 2 : 1; }
#elif HWY_TARGET == HWY_AVX2  // 16 registers
constexpr int kMaxRows = 6;
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int kMaxRows = 3;
constexpr int panels_at_once(int rows) { return rows == 1 ? 2 : 1; }
#endif

// Prefetch distance of the weight stream in bytes: latency times bandwidth, plus a margin.
constexpr size_t kAhead = 16384;

// Matrices up to this size may still be in a near cache. Then a few rows are limited by the latency
// of their sums, and take several panels at once; otherwise one stream is best.
constexpr int64_t kNear = 1 << 20;

// Inputs per stretch. The weights of a stretch stay in cache while all rows pass over them, and
// sums of short stretches have smaller rounding errors.
constexpr int64_t kStretch = 512;

// Weight types. A unit is the data of a panel read at once: two vectors for one input, or for the
// interleaved inputs.
template <class Lane_, class Number_>
struct Numbers {
  using Lane = Lane_;
  using Number = Number_;
  using V = hn::Vec<Lane>;
  static int64_t numbers_before(int64_t unit) { return unit; }  // per row
  HWY_INLINE static V broadcast(const Number* x) { return hn::Set(Lane(), *x); }
  HWY_INLINE static V multiply_add(V w, V number, V sum) { return hn::MulAdd(w, number, sum); }
};
struct Floats : Numbers<hn::ScalableTag<float>, float> {
  static constexpr size_t kUnitBytes = 2 * hn::MaxLanes(Lane()) * sizeof(float);
  static constexpr int64_t kUnits = kStretch;
  HWY_INLINE static void load(const uint8_t* from, hn::Vec<Lane>& a, hn::Vec<Lane>& b) {
    const Lane d;
    const auto* at = reinterpret_cast<const float*>(from);
    a = hn::Load(d, at);
    b = hn::Load(d, at + hn::Lanes(d));
  }
};
struct Doubles : Numbers<hn::ScalableTag<double>, double> {
  static constexpr size_t kUnitBytes = 2 * hn::MaxLanes(Lane()) * sizeof(double);
  static constexpr int64_t kUnits = std::numeric_limits<int64_t>::max() / 2;
  HWY_INLINE static void load(const uint8_t* from, hn::Vec<Lane>& a, hn::Vec<Lane>& b) {
    const Lane d;
    const auto* at = reinterpret_cast<const double*>(from);
    a = hn::Load(d, at);
    b = hn::Load(d, at + hn::Lanes(d));
  }
};
struct BFloats : Numbers<hn::ScalableTag<float>, float> {
  static constexpr size_t kUnitBytes = Floats::kUnitBytes / 2;
  static constexpr int64_t kUnits = kStretch;
  HWY_INLINE static void load(const uint8_t* from, hn::Vec<Lane>& a, hn::Vec<Lane>& b) {
    const hn::RebindToUnsigned<Lane> d;
    const auto both = hn::Load(d, reinterpret_cast<const uint32_t*>(from));
    a = hn::BitCast(Lane(), hn::ShiftLeft<16>(both));
    b = hn::BitCast(Lane(), hn::And(both, hn::Set(d, 0xffff0000u)));
  }
};
struct Halves : Numbers<hn::ScalableTag<float>, float> {
  static constexpr size_t kUnitBytes = Floats::kUnitBytes / 2;
  static constexpr int64_t kUnits = kStretch;
  HWY_INLINE static void load(const uint8_t* from, hn::Vec<Lane>& a, hn::Vec<Lane>& b) {
    const hn::Rebind<hwy::float16_t, Lane> d;
    const auto* at = reinterpret_cast<const hwy::float16_t*>(from);
    a = hn::PromoteTo(Lane(), hn::Load(d, at));
    b = hn::PromoteTo(Lane(), hn::Load(d, at + hn::Lanes(d)));
  }
};
struct Bytes {
  using Number = int32_t;  // two int16
  static constexpr size_t kUnitBytes = Floats::kUnitBytes / 2;
  // 127 * 8191 * 1024 < 2^31: sums are exact.
  static constexpr int64_t kUnits = 512;
  static int64_t numbers_before(int64_t unit) { return unit; }
};

// Rows x columns of one stretch.
struct Tile {
  const uint8_t* weights;  // first panel
  size_t panel_bytes;
  const void* x;  // [units][rows]
  size_t units;
  // Address to prefetch, advanced by ahead_step with each unit.
  const uint8_t* ahead;
  size_t ahead_step;
  size_t first_row;
  size_t first_column;
  bool first_stretch;
  void* sums;  // [rows, sums_stride] for a gated product; null: sums go to the output
  size_t sums_stride;
};

HWY_INLINE void fetch(const uint8_t* at) { hwy::Prefetch(at); }

template <class V>
HWY_INLINE V load_out(hn::ScalableTag<float> d, const float* from) {
  return hn::LoadU(d, from);
}
template <class V>
HWY_INLINE V load_out(hn::ScalableTag<double> d, const double* from) {
  return hn::LoadU(d, from);
}
template <class V>
HWY_INLINE V load_out(hn::ScalableTag<double> d, const float* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, hn::ScalableTag<double>>(), from));
}
HWY_INLINE void store_out(hn::Vec<hn::ScalableTag<float>> v, hn::ScalableTag<float> d, float* to) {
  hn::StoreU(v, d, to);
}
HWY_INLINE void store_out(hn::Vec<hn::ScalableTag<double>> v, hn::ScalableTag<double> d,
                          double* to) {
  hn::StoreU(v, d, to);
}
HWY_INLINE void store_out(hn::Vec<hn::ScalableTag<double>> v, hn::ScalableTag<double> d,
                          float* to) {
  HWY_ALIGN double wide[hn::MaxLanes(hn::ScalableTag<double>())];
  hn::Store(v, d, wide);
  std::copy_n(wide, hn::Lanes(d), to);  // DemoteTo saturates on some targets
}

// Adds a stretch's sums of one row and panel to the sums of the earlier stretches in `out`.
template <class D, class V, class O, class A>
HWY_INLINE void finish(D d, const TileTask<O, A>& t, const Tile& tile, size_t row, size_t column,
                       V a, V b) {
  const size_t lanes = hn::Lanes(d);
  if (tile.sums != nullptr) {
    A* to = static_cast<A*>(tile.sums) + row * tile.sums_stride + (column - tile.first_column);
    if (!tile.first_stretch) {
      a = hn::Add(a, hn::LoadU(d, to));
      b = hn::Add(b, hn::LoadU(d, to + lanes));
    }
    hn::StoreU(a, d, to);
    hn::StoreU(b, d, to + lanes);
    return;
  }
  const auto outs = static_cast<size_t>(t.weights->outs());
  O* out = t.out + row * outs + column;
  const A* bias = tile.first_stretch && t.bias != nullptr ? t.bias + column : nullptr;
  const bool add = !tile.first_stretch || t.then == Then::kAdd;
  if (column + 2 * lanes <= outs) {
    if (bias != nullptr) {
      a = hn::Add(a, hn::LoadU(d, bias));
      b = hn::Add(b, hn::LoadU(d, bias + lanes));
    }
    if (add) {
      a = hn::Add(a, load_out<V>(d, out));
      b = hn::Add(b, load_out<V>(d, out + lanes));
    }
    store_out(a, d, out);
    store_out(b, d, out + lanes);
    return;
  }
  HWY_ALIGN A sums[2 * hn::MaxLanes(D())];
  hn::Store(a, d, sums);
  hn::Store(b, d, sums + lanes);
  for (size_t i = 0; column + i < outs; ++i) {
    A sum = sums[i];
    if (bias != nullptr) sum += bias[i];
    if (add) sum += static_cast<A>(out[i]);
    out[i] = static_cast<O>(sum);
  }
}

// Inlined into multiply(), to be compiled with its target attribute.
template <class Kind, int Rows, int Panels, class O, class A>
HWY_INLINE void multiply_numbers(const TileTask<O, A>& t, const Tile& tile) {
  using D = typename Kind::Lane;
  using V = hn::Vec<D>;
  const D d;
  V sum[Panels][2][Rows];
  HWY_UNROLL(Panels)
  for (int p = 0; p < Panels; ++p) {
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) sum[p][0][r] = sum[p][1][r] = hn::Zero(d);
  }
  const auto* x = static_cast<const typename Kind::Number*>(tile.x);
  const uint8_t* weights = tile.weights;
  const uint8_t* ahead = tile.ahead;
  for (size_t k = 0; k < tile.units; ++k) {
    V w[Panels][2];
    HWY_UNROLL(Panels)
    for (int p = 0; p < Panels; ++p) {
      const auto panel = static_cast<size_t>(p) * tile.panel_bytes;
      Kind::load(weights + panel, w[p][0], w[p][1]);
      fetch(ahead + panel);
      if (Kind::kUnitBytes > 64) fetch(ahead + panel + 64);
    }
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      const V number = Kind::broadcast(x + r);
      HWY_UNROLL(Panels)
      for (int p = 0; p < Panels; ++p) {
        sum[p][0][r] = Kind::multiply_add(w[p][0], number, sum[p][0][r]);
        sum[p][1][r] = Kind::multiply_add(w[p][1], number, sum[p][1][r]);
      }
    }
    weights += Kind::kUnitBytes;
    ahead += tile.ahead_step;
    x += Rows;
  }
  HWY_UNROLL(Panels)
  for (int p = 0; p < Panels; ++p) {
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      finish(d, t, tile, tile.first_row + static_cast<size_t>(r),
             tile.first_column + static_cast<size_t>(p) * 2 * hn::Lanes(d), sum[p][0][r],
             sum[p][1][r]);
    }
  }
}

template <class Kind, int Rows, int Panels, class O, class A>
  requires std::is_same_v<Kind, Bytes>
HWY_NOINLINE void multiply(const TileTask<O, A>& t, const Tile& tile) {
  const hn::ScalableTag<int32_t> d;
  const hn::ScalableTag<float> df;
  const hn::Repartition<int16_t, decltype(d)> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  using V = hn::Vec<decltype(d)>;
  // On targets with a pairwise multiply-add, sum1 stays zero.
  V sum[Panels][2][Rows], sum1[Panels][2][Rows];
  HWY_UNROLL(Panels)
  for (int p = 0; p < Panels; ++p) {
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      sum[p][0][r] = sum[p][1][r] = sum1[p][0][r] = sum1[p][1][r] = hn::Zero(d);
    }
  }
  const auto* x = static_cast<const int32_t*>(tile.x);
  const uint8_t* weights = tile.weights;
  const uint8_t* ahead = tile.ahead;
  for (size_t k = 0; k < tile.units; ++k) {
    hn::Vec<decltype(d16)> w[Panels][2];
    HWY_UNROLL(Panels)
    for (int p = 0; p < Panels; ++p) {
      const auto panel = static_cast<size_t>(p) * tile.panel_bytes;
      const auto* at = reinterpret_cast<const int8_t*>(weights + panel);
      w[p][0] = hn::PromoteTo(d16, hn::Load(d8, at));
      w[p][1] = hn::PromoteTo(d16, hn::Load(d8, at + hn::Lanes(d8)));
      fetch(ahead + panel);
    }
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      const auto pair = hn::BitCast(d16, hn::Set(d, x[r]));
      HWY_UNROLL(Panels)
      for (int p = 0; p < Panels; ++p) {
        sum[p][0][r] = hn::ReorderWidenMulAccumulate(d, w[p][0], pair, sum[p][0][r], sum1[p][0][r]);
        sum[p][1][r] = hn::ReorderWidenMulAccumulate(d, w[p][1], pair, sum[p][1][r], sum1[p][1][r]);
      }
    }
    weights += Bytes::kUnitBytes;
    ahead += tile.ahead_step;
    x += Rows;
  }
  HWY_UNROLL(Panels)
  for (int p = 0; p < Panels; ++p) {
    const size_t column = tile.first_column + static_cast<size_t>(p) * 2 * hn::Lanes(d);
    const float* scales = t.weights->scales() + column;
    const auto scale_a = hn::LoadU(df, scales);
    const auto scale_b = hn::LoadU(df, scales + hn::Lanes(df));
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      const size_t row = tile.first_row + static_cast<size_t>(r);
      const auto scale = hn::Set(df, t.x->scales()[row]);
      const V a = hn::RearrangeToOddPlusEven(sum[p][0][r], sum1[p][0][r]);
      const V b = hn::RearrangeToOddPlusEven(sum[p][1][r], sum1[p][1][r]);
      finish(df, t, tile, row, column, hn::Mul(hn::ConvertTo(df, a), hn::Mul(scale, scale_a)),
             hn::Mul(hn::ConvertTo(df, b), hn::Mul(scale, scale_b)));
    }
  }
}

template <class Kind, int Rows, int Panels, class O, class A>
HWY_NOINLINE void multiply(const TileTask<O, A>& t, const Tile& tile) {
  multiply_numbers<Kind, Rows, Panels>(t, tile);
}

#if HWY_TARGET == HWY_AVX3
// Highway has no target with VPDPBUSD (u8 x s8 dot products of four, added to int32).
#define TANDEM_VNNI __attribute__((target(HWY_TARGET_STR ",avx512vnni")))

struct ByteQuads {
  using Number = int32_t;  // four int8
  static constexpr size_t kUnitBytes = Floats::kUnitBytes;
  static constexpr int64_t kUnits = kStretch;
  static constexpr int64_t kBlockUnits = kRowBlock / 4;
  static_assert(kUnits % kBlockUnits == 0);
  static int64_t numbers_before(int64_t unit) { return unit + 2 * (unit / kBlockUnits); }
  // Not HWY_INLINE: always_inline would require that the caller has the same target attribute.
  TANDEM_VNNI static inline hn::Vec512<int32_t> multiply_add(hn::Vec512<int32_t> w,
                                                             hn::Vec512<int32_t> numbers,
                                                             hn::Vec512<int32_t> sum) {
    return hn::Vec512<int32_t>{_mm512_dpbusd_epi32(sum.raw, w.raw, numbers.raw)};
  }
};

// Products of a block are summed exactly as integers, block sums as fp32. Weights are stored + 128,
// so each sum starts at -128 * sum(codes).
template <class Kind, int Rows, int Panels, class O, class A>
  requires std::is_same_v<Kind, ByteQuads>
TANDEM_VNNI HWY_NOINLINE void multiply(const TileTask<O, A>& t, const Tile& tile) {
  const hn::ScalableTag<int32_t> d;
  const hn::ScalableTag<float> df;
  constexpr auto kBlock = static_cast<size_t>(ByteQuads::kBlockUnits);
  hn::Vec<decltype(df)> total[Panels][2][Rows];
  HWY_UNROLL(Panels)
  for (int p = 0; p < Panels; ++p) {
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) total[p][0][r] = total[p][1][r] = hn::Zero(df);
  }
  const auto* x = static_cast<const int32_t*>(tile.x);
  const uint8_t* weights = tile.weights;
  const uint8_t* ahead = tile.ahead;
  for (size_t k = 0; k < tile.units; k += kBlock) {
    hn::Vec<decltype(d)> sum[Panels][2][Rows];
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      const auto start = hn::Set(d, x[r]);
      HWY_UNROLL(Panels)
      for (int p = 0; p < Panels; ++p) sum[p][0][r] = sum[p][1][r] = start;
    }
    x += Rows;
    const size_t end = std::min(tile.units, k + kBlock);
    for (size_t i = k; i < end; ++i) {
      hn::Vec<decltype(d)> w[Panels][2];
      HWY_UNROLL(Panels)
      for (int p = 0; p < Panels; ++p) {
        const auto panel = static_cast<size_t>(p) * tile.panel_bytes;
        const auto* from = reinterpret_cast<const int32_t*>(weights + panel);
        w[p][0] = hn::Load(d, from);
        w[p][1] = hn::Load(d, from + hn::Lanes(d));
        fetch(ahead + panel);
        fetch(ahead + panel + 64);
      }
      HWY_UNROLL(Rows)
      for (int r = 0; r < Rows; ++r) {
        const auto numbers = hn::Set(d, x[r]);
        HWY_UNROLL(Panels)
        for (int p = 0; p < Panels; ++p) {
          sum[p][0][r] = ByteQuads::multiply_add(w[p][0], numbers, sum[p][0][r]);
          sum[p][1][r] = ByteQuads::multiply_add(w[p][1], numbers, sum[p][1][r]);
        }
      }
      weights += ByteQuads::kUnitBytes;
      ahead += tile.ahead_step;
      x += Rows;
    }
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      const auto scale = hn::BitCast(df, hn::Set(d, x[r]));
      HWY_UNROLL(Panels)
      for (int p = 0; p < Panels; ++p) {
        total[p][0][r] = hn::MulAdd(hn::ConvertTo(df, sum[p][0][r]), scale, total[p][0][r]);
        total[p][1][r] = hn::MulAdd(hn::ConvertTo(df, sum[p][1][r]), scale, total[p][1][r]);
      }
    }
    x += Rows;
  }
  HWY_UNROLL(Panels)
  for (int p = 0; p < Panels; ++p) {
    const size_t column = tile.first_column + static_cast<size_t>(p) * 2 * hn::Lanes(df);
    const auto scale_a = hn::LoadU(df, t.weights->scales() + column);
    const auto scale_b = hn::LoadU(df, t.weights->scales() + column + hn::Lanes(df));
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      finish(df, t, tile, tile.first_row + static_cast<size_t>(r), column,
             hn::Mul(total[p][0][r], scale_a), hn::Mul(total[p][1][r], scale_b));
    }
  }
}

// Highway has no target with VDPBF16PS (bf16 dot products of two, added to fp32).
#define TANDEM_BF16 __attribute__((target(HWY_TARGET_STR ",avx512bf16")))

struct BFloatPairs : Floats {
  using Number = int32_t;                      // two bf16
  static constexpr int64_t kUnits = kStretch;  // 1024 inputs: as many bytes as in fp32
  HWY_INLINE static V broadcast(const Number* x) {
    return hn::BitCast(Lane(), hn::Set(hn::RebindToSigned<Lane>(), *x));
  }
  // Not HWY_INLINE: as in ByteQuads.
  TANDEM_BF16 static inline V multiply_add(V w, V number, V sum) {
    return V{_mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(w.raw),
                              reinterpret_cast<__m512bh>(number.raw))};
  }
};

template <class Kind, int Rows, int Panels, class O, class A>
  requires std::is_same_v<Kind, BFloatPairs>
TANDEM_BF16 HWY_NOINLINE void multiply(const TileTask<O, A>& t, const Tile& tile) {
  multiply_numbers<BFloatPairs, Rows, Panels>(t, tile);
}
#endif

template <class O, class A>
using Multiply = void (*)(const TileTask<O, A>&, const Tile&);

// Kernel instances by number of rows.
template <class Kind, class O, class A>
struct Tiles {
  template <int... Rows>
  static Multiply<O, A> pick(int rows, bool single, std::integer_sequence<int, Rows...>) {
    static constexpr Multiply<O, A> several[] = {
        &multiply<Kind, Rows + 1, panels_at_once(Rows + 1), O, A>...};
    static constexpr Multiply<O, A> one[] = {&multiply<Kind, Rows + 1, 1, O, A>...};
    return single ? one[rows - 1] : several[rows - 1];
  }
  static Multiply<O, A> get(int rows, bool single) {
    return pick(rows, single, std::make_integer_sequence<int, kMaxRows>());
  }
};

// out = act(a) * b for one row's sums a and b of a panel, after adding biases.
template <class D, class O, class A>
HWY_INLINE void gate(D d, const TileTask<O, A>& t, const A* sums, int64_t row, int64_t panel) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = t.weights->outs() / 2;
  const int64_t first = panel * lanes;
  const int64_t n = std::min(lanes, width - first);
  const auto biases = [&](int64_t from) {
    if (t.bias == nullptr) return hn::Zero(d);
    HWY_ALIGN A some[hn::MaxLanes(D())] = {};
    std::copy_n(t.bias + from, n, some);
    return hn::Load(d, some);
  };
  auto a = hn::Add(hn::LoadU(d, sums), biases(first));
  auto b = hn::Add(hn::LoadU(d, sums + lanes), biases(width + first));
  if (const A* added = t.added == nullptr ? nullptr : t.added->of(row, 2 * width)) {
    HWY_ALIGN A some[2 * hn::MaxLanes(D())] = {};
    std::copy_n(added + first, n, some);
    std::copy_n(added + width + first, n, some + lanes);
    a = hn::Add(a, hn::LoadU(d, some));
    b = hn::Add(b, hn::LoadU(d, some + lanes));
  }
  const auto gated = hn::Mul(activated(d, a, t.activation), b);
  O* out = t.out + row * width + first;
  if (n == lanes) return store_out(gated, d, out);
  HWY_ALIGN O some[hn::MaxLanes(D())];
  store_out(gated, d, some);
  std::copy_n(some, n, out);
}

template <class Kind, class O, class A>
void run(const TileTask<O, A>& t, int64_t first_panel, int64_t end_panel, int64_t first_group,
         int64_t end_group) {
  const PackedMatrix& w = *t.weights;
  const PreparedRows& x = *t.x;
  const int64_t units = w.panel_bytes() / static_cast<int64_t>(Kind::kUnitBytes);
  const int64_t groups = end_group - first_group;
  const int few = static_cast<int>(x.first_row(first_group + 1) - x.first_row(first_group));
  const bool near = w.panels() * w.panel_bytes() <= kNear;
  const int64_t most_panels = groups == 1 && near ? panels_at_once(few) : 1;
  const hn::ScalableTag<A> d;
  thread_local std::vector<A> sums;
  const int64_t sums_stride = most_panels * w.columns();
  if (t.then == Then::kGate) sums.resize(static_cast<size_t>(x.rows() * sums_stride));
  for (int64_t panel = first_panel; panel < end_panel;) {
    const bool single = end_panel - panel < most_panels || most_panels == 1;
    for (int64_t k = 0; k < units; k += Kind::kUnits) {
      const int64_t n = std::min(Kind::kUnits, units - k);
      Tile tile;
      tile.panel_bytes = static_cast<size_t>(w.panel_bytes());
      tile.weights = reinterpret_cast<const uint8_t*>(w.panel(panel)) +
                     static_cast<size_t>(k) * Kind::kUnitBytes;
      tile.units = static_cast<size_t>(n);
      tile.first_column = static_cast<size_t>(panel * w.columns());
      tile.first_stretch = k == 0;
      tile.sums = t.then == Then::kGate ? sums.data() : nullptr;
      tile.sums_stride = static_cast<size_t>(sums_stride);
      const size_t bytes = tile.units * Kind::kUnitBytes;
      for (int64_t g = first_group; g < end_group; ++g) {
        const int64_t row = x.first_row(g);
        const auto rows = static_cast<int>(x.first_row(g + 1) - row);
        tile.first_row = static_cast<size_t>(row);
        tile.x = reinterpret_cast<const typename Kind::Number*>(x.group(g)) +
                 Kind::numbers_before(k) * rows;
        // A single group prefetches the continuation of its stream. Several groups prefetch a part
        // of the next stretch each.
        tile.ahead_step = Kind::kUnitBytes / static_cast<size_t>(groups);
        tile.ahead = groups == 1 ? tile.weights + kAhead
                                 : tile.weights + bytes +
                                       bytes / static_cast<size_t>(groups) *
                                           static_cast<size_t>(g - first_group);
        Tiles<Kind, O, A>::get(rows, single)(t, tile);
        if (tile.sums == nullptr || k + n < units) continue;
        for (int64_t r = row; r < row + rows; ++r) {
          for (int64_t p = 0; p < (single ? 1 : most_panels); ++p) {
            gate(d, t, sums.data() + r * sums_stride + p * w.columns(), r, panel + p);
          }
        }
      }
    }
    panel += single ? 1 : most_panels;
  }
}

template <class O>
void run_doubles(const TileTask<O, double>& t, int64_t first_panel, int64_t end_panel,
                 int64_t first_group, int64_t end_group) {
  run<Doubles>(t, first_panel, end_panel, first_group, end_group);
}

}  // namespace

void tiles_of_floats(const TileTask<float, float>& t, int64_t first_panel, int64_t end_panel,
                     int64_t first_group, int64_t end_group) {
  switch (t.weights->type()) {
    case WeightType::kFloat:
      return run<Floats>(t, first_panel, end_panel, first_group, end_group);
    case WeightType::kBFloat16:
#if HWY_TARGET == HWY_AVX3
      if (use_bf16()) return run<BFloatPairs>(t, first_panel, end_panel, first_group, end_group);
#endif
      return run<BFloats>(t, first_panel, end_panel, first_group, end_group);
    case WeightType::kHalf:
      return run<Halves>(t, first_panel, end_panel, first_group, end_group);
    case WeightType::kInt8:
#if HWY_TARGET == HWY_AVX3
      if (use_vnni()) return run<ByteQuads>(t, first_panel, end_panel, first_group, end_group);
#endif
      return run<Bytes>(t, first_panel, end_panel, first_group, end_group);
    case WeightType::kDouble:
      break;
  }
}
void tiles_of_doubles(const TileTask<double, double>& t, int64_t first_panel, int64_t end_panel,
                      int64_t first_group, int64_t end_group) {
  run_doubles(t, first_panel, end_panel, first_group, end_group);
}
void tiles_of_doubles_to_float(const TileTask<float, double>& t, int64_t first_panel,
                               int64_t end_panel, int64_t first_group, int64_t end_group) {
  run_doubles(t, first_panel, end_panel, first_group, end_group);
}

TileShape shape_of_tiles(WeightType type) {
  const auto lanes = static_cast<int>(type == WeightType::kDouble ? hn::MaxLanes(Doubles::Lane())
                                                                  : hn::MaxLanes(Floats::Lane()));
  int inputs = type == WeightType::kInt8 ? 2 : 1;
#if HWY_TARGET == HWY_AVX3
  if (type == WeightType::kInt8 && use_vnni()) inputs = 4;
  if (type == WeightType::kBFloat16 && use_bf16()) inputs = 2;
#endif
  return {2 * lanes, inputs, kMaxRows, panels_at_once(1)};
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(tiles_of_floats);
HWY_EXPORT(tiles_of_doubles);
HWY_EXPORT(tiles_of_doubles_to_float);
HWY_EXPORT(shape_of_tiles);

void product_tiles(const TileTask<float, float>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group) {
  HWY_DYNAMIC_DISPATCH(tiles_of_floats)(task, first_panel, end_panel, first_group, end_group);
}
void product_tiles(const TileTask<float, double>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group) {
  HWY_DYNAMIC_DISPATCH(tiles_of_doubles_to_float)
  (task, first_panel, end_panel, first_group, end_group);
}
void product_tiles(const TileTask<double, double>& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group) {
  HWY_DYNAMIC_DISPATCH(tiles_of_doubles)(task, first_panel, end_panel, first_group, end_group);
}

TileShape tile_shape(WeightType type) { return HWY_DYNAMIC_DISPATCH(shape_of_tiles)(type); }

}  // namespace tandem::cpu
#endif
