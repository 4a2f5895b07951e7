#include "engine/backend/torch/cpu/quantized_tiles.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/backend/torch/cpu/narrow_row.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/backend/torch/cpu/weight_memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/torch/cpu/quantized_tiles.cpp"
#include "hwy/foreach_target.h"  // compiles this file once per target
// Included after foreach_target.h:
#include "engine/backend/torch/cpu/activation-inl.h"
#include "engine/backend/torch/cpu/quantized_avx2-inl.h"
#include "engine/backend/torch/cpu/quantized_unit-inl.h"
#include "engine/backend/torch/cpu/quantized_vnni-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_AVX2
// Maximum rows per kernel call. The sums of all rows stay in registers, with few rows also their
// totals. The rows share the cost of unpacking codes. Units are processed in order, so weights are
// one stream. Groups depend on each other only through their totals, so the processor overlaps
// several groups.
#if HWY_TARGET <= HWY_AVX3
constexpr int kMaxRows = 16;
#elif HWY_TARGET == HWY_EMU128  // a reference; each row count takes seconds to compile
constexpr int kMaxRows = 1;
#else
constexpr int kMaxRows = 3;
#endif
#endif

// Prefetch distance of the code stream in bytes. The hardware prefetcher is weak here on some
// processors: a thread of Zen 5 reads 11 GB/s without this and 33 GB/s with 4 to 24 KB.
constexpr size_t kAhead = 8192;

// Bytes of a group of rows that the L1 cache keeps while a unit is multiplied.
constexpr size_t kRowsInL1 = 24576;

// Rows with Tile::two_levels. With more, arithmetic takes longer than reading weights from memory.
constexpr int kMostTwoLevelRows = 6;

// Groups of rows that share decoded scales, and codes in the L1 cache.
constexpr int64_t kRowGroupsTogether = 4;

#if HWY_TARGET == HWY_AVX2

template <QuantType Type>
HWY_NOINLINE void multiply(const Tile& tile) {
  multiply_rows<Type>(tile, tile.rows);
}
template <QuantType Type>
HWY_NOINLINE void multiply_one(const Tile& tile) {
  multiply_rows<Type>(tile, 1);
}

using Multiply = void (*)(const Tile&);

template <QuantType Type>
Multiply pick(int rows) {
  return rows == 1 ? &multiply_one<Type> : &multiply<Type>;
}

#else

// Prefetch distance of rows that do not fit into the L1 cache.
constexpr size_t kRowsAhead = 2048;

// a * b + c with one rounding.
HWY_INLINE FloatV fused(FloatV a, FloatV b, FloatV c) {
#if HWY_TARGET == HWY_EMU128
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, Floats(), x);
  hn::Store(b, Floats(), y);
  hn::Store(c, Floats(), z);
  for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(Floats(), z);
#else
  return hn::MulAdd(a, b, c);
#endif
}

// Dot products of four codes per column with four activations. Layout of the activations:
// quantize_groups() in narrow_row.h.
struct Portable {
  static constexpr int kWords = 2;
  template <int Bits>
  HWY_INLINE static void codes(const uint8_t* at, int i, IntV& low, IntV& high) {
    unpack<Bits>(at, i, low, high);
  }
  HWY_INLINE static IntV add(IntV sum, IntV codes, const int32_t* x, int stride) {
    const Shorts d;
    const auto w = hn::BitCast(d, codes);
    const auto even = hn::And(w, hn::Set(d, 255));
    const auto odd =
        hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(hn::RebindToUnsigned<Shorts>(), w)));
    sum = pairs(sum, even, hn::BitCast(d, hn::Set(Ints(), x[0])));
    return pairs(sum, odd, hn::BitCast(d, hn::Set(Ints(), x[stride])));
  }

 private:
  // Adds the products of two adjacent int16 to each int32 lane.
  HWY_INLINE static IntV pairs(IntV sum, hn::Vec<Shorts> a, hn::Vec<Shorts> b) {
#if HWY_TARGET == HWY_EMU128
    HWY_ALIGN int16_t x[2 * kLanes], y[2 * kLanes];
    HWY_ALIGN int32_t z[kLanes];
    hn::Store(a, Shorts(), x);
    hn::Store(b, Shorts(), y);
    hn::Store(sum, Ints(), z);
    for (int i = 0; i < kLanes; ++i) z[i] += x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
    return hn::Load(Ints(), z);
#else
    IntV none = hn::Zero(Ints());  // stays zero on targets with a pairwise multiply-add
    return hn::ReorderWidenMulAccumulate(Ints(), a, b, sum, none);
#endif
  }
};

// Adds the products of 32 inputs of a slice. low, high: sums of the first and the last 16 inputs,
// or both the same. codes: at the slice's first column; x: [8][Dot::kWords][Rows].
template <class Dot, int Bits, int Rows>
HWY_INLINE void add_group(const uint8_t* codes, const int32_t* x, IntV* low, IntV* high) {
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    IntV first, last;
    Dot::template codes<Bits>(codes, i, first, last);
    const int32_t* four = x + i * Dot::kWords * Rows;
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      low[r] = Dot::add(low[r], first, four + r, Rows);
      high[r] = Dot::add(high[r], last, four + 4 * Dot::kWords * Rows + r, Rows);
    }
  }
}

// Inlined into multiply() and multiply_vnni(), to be compiled with their target attributes.
template <QuantType Type, class Dot, int Rows>
HWY_INLINE void multiply_groups(const Tile& tile) {
  constexpr QuantFormat kFormat = quant_format(Type);
  constexpr int kZero = kFormat.zero;
  constexpr bool kSixteens = kFormat.scales == QuantScales::kSixteens;
  constexpr bool kLess =
      kFormat.scales == QuantScales::kScaleAndMin || kFormat.scales == QuantScales::kTwoLevels;
  // With few rows, two independent sums shorten the dependency chain.
  constexpr int kHalves = kSixteens || Rows <= 2 ? 2 : 1;
  const Floats d;
  const Ints di;
  FloatV total[kSlices][Rows];
  HWY_UNROLL(kSlices)
  for (int s = 0; s < kSlices; ++s) {
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      total[s][r] = hn::Load(d, tile.totals + r * kColumns + s * kLanes);
    }
  }
  const int32_t* x = tile.x;
  const uint8_t* codes = tile.codes;
  const uint8_t* ahead = tile.ahead;
  for (int64_t g = 0; g < tile.groups; ++g) {
    // Three sums, scale, scale * sum. Loads broadcast them without vector instructions.
    const int32_t* after = x + 8 * Dot::kWords * Rows;
    IntV sum[kHalves][kSlices][Rows];
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      IntV first = hn::Zero(di), last = hn::Zero(di);
      if constexpr (kSixteens) {
        static_assert(kZero == 32);
        first = hn::Set(di, after[r]);
        last = hn::Set(di, after[Rows + r]);
      } else if constexpr (kZero == 16) {
        first = hn::Set(di, after[2 * Rows + r]);
      } else if constexpr (kZero != 0) {
        first = hn::Set(di, after[2 * Rows + r] * kZero / 16);
      }
      HWY_UNROLL(kSlices)
      for (int s = 0; s < kSlices; ++s) {
        sum[0][s][r] = first;
        if (kHalves == 2) sum[kHalves - 1][s][r] = last;
      }
    }
    HWY_UNROLL(kSlices)
    for (int s = 0; s < kSlices; ++s) {
      add_group<Dot, kFormat.bits, Rows>(codes + static_cast<size_t>(s * kLanes * 4), x, sum[0][s],
                                         sum[kHalves - 1][s]);
    }
    HWY_UNROLL(kSlices)
    for (int s = 0; s < kSlices; ++s) {
      FloatV scale, other;
      scales_of<kFormat>(tile, g, s, scale, other);
      HWY_UNROLL(Rows)
      for (int r = 0; r < Rows; ++r) {
        const auto dx = hn::BitCast(d, hn::Set(di, after[3 * Rows + r]));
        if constexpr (kSixteens) {
          auto u = hn::Mul(hn::ConvertTo(d, sum[0][s][r]), scale);
          u = fused(hn::ConvertTo(d, sum[1][s][r]), other, u);
          total[s][r] = fused(u, dx, total[s][r]);
          continue;
        }
        IntV all = sum[0][s][r];
        if (kHalves == 2) all = hn::Add(all, sum[kHalves - 1][s][r]);
        total[s][r] = fused(hn::ConvertTo(d, all), hn::Mul(scale, dx), total[s][r]);
        if constexpr (kLess) {
          const auto dx_sum = hn::BitCast(d, hn::Set(di, after[4 * Rows + r]));
          total[s][r] = fused(other, dx_sum, total[s][r]);
        }
      }
    }
    prefetch_weights<kFormat>(tile, codes, ahead);
    ahead += tile.ahead_step;
    if (Rows >= 4 && tile.prefetches_rows) {
      constexpr size_t kGroupOfRows = sizeof(int32_t) * (8 * Dot::kWords + 5) * Rows;
      const auto* next = reinterpret_cast<const uint8_t*>(x) + kRowsAhead;
      for (size_t line = 0; line < kGroupOfRows; line += 64) hwy::Prefetch(next + line);
    }
    x = after + 5 * Rows;
    codes += QuantizedMatrix::code_bytes(kFormat);
  }
  HWY_UNROLL(Rows)
  for (int r = 0; r < Rows; ++r) {
    HWY_UNROLL(kSlices)
    for (int s = 0; s < kSlices; ++s) {
      hn::Store(total[s][r], d, tile.totals + r * kColumns + s * kLanes);
    }
  }
}

template <QuantType Type, int Rows>
HWY_NOINLINE void multiply(const Tile& tile) {
  multiply_groups<Type, Portable, Rows>(tile);
}
#if HWY_TARGET == HWY_AVX3
template <QuantType Type, int Rows>
TANDEM_VNNI HWY_NOINLINE void multiply_vnni(const Tile& tile) {
  multiply_groups<Type, Vnni, Rows>(tile);
}
template <QuantType Type, int Rows>
TANDEM_GFNI HWY_NOINLINE void multiply_gfni(const Tile& tile) {
  multiply_groups<Type, Gfni, Rows>(tile);
}
#endif

using Multiply = void (*)(const Tile&);

template <QuantType Type, int... Rows>
Multiply pick(int rows, std::integer_sequence<int, Rows...>) {
  static constexpr Multiply all[] = {&multiply<Type, Rows + 1>...};
  return all[rows - 1];
}
#if HWY_TARGET == HWY_AVX3
// With more rows, both units of a panel are faster (quantized_vnni-inl.h). Measured on Zen 5, with
// weights from memory: sums that begin with a zero point need more registers.
constexpr int max_rows_of_unit(const QuantFormat& f) {
  return f.scales == QuantScales::kSixteens ? 10 : f.zero != 0 ? 12 : 14;
}

template <QuantType Type, int... Rows>
Multiply pick_vnni(int rows, std::integer_sequence<int, Rows...>) {
  static constexpr Multiply gfni[] = {&multiply_gfni<Type, Rows + 1>...};
  if (use_gfni()) return gfni[rows - 1];
  static constexpr Multiply vnni[] = {&multiply_vnni<Type, Rows + 1>...};
  return vnni[rows - 1];
}
#endif
template <QuantType Type>
Multiply pick(int rows) {
#if HWY_TARGET == HWY_AVX3
  if (use_vnni()) {
    return pick_vnni<Type>(rows,
                           std::make_integer_sequence<int, max_rows_of_unit(quant_format(Type))>());
  }
#endif
  return pick<Type>(rows, std::make_integer_sequence<int, kMaxRows>());
}

#endif

using MultiplyBoth = void (*)(const Tile (*)[2], int64_t);

// Null: units are multiplied one after the other.
template <QuantType Type>
MultiplyBoth pick_both([[maybe_unused]] int64_t rows) {
#if HWY_TARGET == HWY_AVX3
  if (rows > max_rows_of_unit(quant_format(Type)) && use_vnni()) {
    return use_gfni() ? &multiply_both_gfni<Type> : &multiply_both_vnni<Type>;
  }
#endif
  return nullptr;
}

// Multiplies a panel, `groups` groups of inputs, with n groups of rows. tiles: [n][unit], with
// rows, x, totals and ahead.
template <QuantType Type>
HWY_NOINLINE void multiply_units(const uint8_t* panel, size_t codes_at, size_t unit_bytes,
                                 int64_t groups, Tile (*tiles)[2], int64_t n) {
  constexpr QuantFormat kFormat = quant_format(Type);
  constexpr int64_t kGroupsPerBlock = kFormat.inputs() / 32;
  constexpr int64_t kTogether = decodes_scales(kFormat) ? kGroupsTogether : INT64_MAX / 2;
  const int64_t words = quantized_words();
  Multiply multiply[kRowGroupsTogether];
  int64_t rows = 0;
  for (int64_t i = 0; i < n; ++i) rows += tiles[i][0].rows;
  const MultiplyBoth both = pick_both<Type>(rows);
  for (int64_t i = 0; both == nullptr && i < n; ++i) multiply[i] = pick<Type>(tiles[i][0].rows);
  Scales decoded[2];
  const int units = both == nullptr ? 1 : 2;
  for (int first = 0; first < 2; first += units) {
    for (int64_t group = 0; group < groups; group += kTogether) {
      const int64_t some = std::min(groups - group, kTogether);
      for (int u = first; u < first + units; ++u) {
        const uint8_t* unit = panel + static_cast<size_t>(u) * unit_bytes;
        const uint8_t* scales =
            unit + group / kGroupsPerBlock * QuantizedMatrix::scale_bytes(kFormat);
        if constexpr (decodes_scales(kFormat)) decode_scales<kFormat>(scales, some, decoded[u]);
        for (int64_t i = 0; i < n; ++i) {
          Tile& tile = tiles[i][u];
          tile.codes = unit + codes_at + group * QuantizedMatrix::code_bytes(kFormat);
          tile.scales = scales;
          tile.decoded = &decoded[u];
          tile.groups = some;
        }
      }
      if (both != nullptr) {
        both(tiles, n);
      } else {
        for (int64_t i = 0; i < n; ++i) multiply[i](tiles[i][first]);
      }
      for (int u = first; u < first + units; ++u) {
        for (int64_t i = 0; i < n; ++i) {
          Tile& tile = tiles[i][u];
          tile.x += some * words * tile.rows;
          tile.ahead += static_cast<size_t>(some) * tile.ahead_step;
        }
      }
    }
  }
}

// The first n numbers, then zeros.
HWY_INLINE FloatV load_some(const float* from, int64_t n) {
  if (n >= kLanes) return hn::LoadU(Floats(), from);
  HWY_ALIGN float some[kLanes] = {};
  if (n > 0) std::copy_n(from, n, some);
  return hn::Load(Floats(), some);
}
HWY_INLINE void store_some(FloatV v, float* to, int64_t n) {
  if (n >= kLanes) return hn::StoreU(v, Floats(), to);
  HWY_ALIGN float some[kLanes];
  hn::Store(v, Floats(), some);
  if (n > 0) std::copy_n(some, n, to);
}

// Writes one row's sums of a panel to the output, with bias and epilogue.
void finish(const QuantTask& t, const QuantizedMatrix::Segment& segment, int64_t panel, int64_t row,
            const float* sums) {
  const Floats d;
  const int64_t in_segment = panel - segment.first_panel;
  const int64_t outs = t.weights->outs();
  if (t.then != Then::kGate) {
    const int64_t first = in_segment * kColumns;
    for (int64_t i = 0; i < kColumns; i += kLanes) {
      const int64_t n = segment.outs - first - i, column = segment.first_out + first + i;
      float* out = t.out + row * outs + column;
      auto v = hn::LoadU(d, sums + i);
      if (t.bias != nullptr) v = hn::Add(v, load_some(t.bias + column, n));
      if (t.then == Then::kAdd) v = hn::Add(v, load_some(out, n));
      store_some(v, out, n);
    }
    return;
  }
  const int64_t width = outs / 2, first = in_segment * kUnit;
  for (int64_t i = 0; i < kUnit; i += kLanes) {
    const int64_t column = first + i, n = width - column;
    auto a = hn::LoadU(d, sums + i), b = hn::LoadU(d, sums + kUnit + i);
    if (t.bias != nullptr) {
      a = hn::Add(a, load_some(t.bias + column, n));
      b = hn::Add(b, load_some(t.bias + width + column, n));
    }
    if (const float* added = t.added == nullptr ? nullptr : t.added->of(row, outs)) {
      a = hn::Add(a, load_some(added + column, n));
      b = hn::Add(b, load_some(added + width + column, n));
    }
    const auto gated = hn::Mul(activated(d, a, t.activation), b);
    store_some(gated, t.out + row * width + column, n);
  }
}

// Multiplies a panel with n groups of rows. done, all: groups of rows before these, and of the
// whole product.
void multiply_panel(const QuantTask& t, const QuantizedMatrix::Segment& s, int64_t panel,
                    int64_t first_group, int64_t n, int64_t done, int64_t all) {
  const PreparedRows& x = *t.x;
  const int64_t first_row = x.first_row(first_group),
                rows = x.first_row(first_group + n) - first_row;
  const int64_t groups = t.weights->in() / 32;
  const auto multiply =
      for_quant_type(s.format.type, []<QuantType Type>() { return &multiply_units<Type>; });
  const size_t group_bytes = for_quant_type(
      s.format.type, []<QuantType Type>() { return kGroupBytes<quant_format(Type)>; });
  HWY_ALIGN float totals[kRowGroupsTogether * kMaxRows * kColumns];
  std::fill_n(totals, rows * kColumns, 0.f);
  const auto* units = reinterpret_cast<const uint8_t*>(t.weights->panel(s, panel));
  Tile tiles[kRowGroupsTogether][2] = {};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = x.first_row(first_group + i);
    for (int u = 0; u < 2; ++u) {
      Tile& tile = tiles[i][u];
      tile.rows = static_cast<int>(x.first_row(first_group + i + 1) - row);
      tile.x = reinterpret_cast<const int32_t*>(x.group(first_group + i));
      tile.prefetches_rows =
          static_cast<size_t>(groups * quantized_words() * tile.rows) * sizeof(int32_t) > kRowsInL1;
      tile.totals = totals + (row - first_row) * kColumns + u * kUnit;
      tile.ahead = units + u * s.unit_bytes + s.codes_at + kAhead;
      tile.ahead_step = group_bytes;
      tile.skip_from = units + (u + 1) * s.unit_bytes;
      tile.skip = static_cast<size_t>(s.unit_bytes);
      if (done + i == 0) {  // the other groups of rows find the codes in the caches
        tile.two_levels =
            tile.rows <= kMostTwoLevelRows && prefetches_two_levels() && weights_exceed_caches();
        continue;
      }
      if (t.later == nullptr) continue;
      const int64_t parts = 2 * (all - 1);  // per panel
      const auto part =
          t.later->part(panel * parts + 2 * (done + i - 1) + u, t.weights->panels() * parts);
      tile.ahead = reinterpret_cast<const uint8_t*>(part.data());
      tile.ahead_step = part.size() / static_cast<size_t>(groups) + 1;
      tile.skip = 0;
    }
  }
  multiply(units, static_cast<size_t>(s.codes_at), static_cast<size_t>(s.unit_bytes), groups, tiles,
           n);
  for (int64_t r = 0; r < rows; ++r) finish(t, s, panel, first_row + r, totals + r * kColumns);
}

}  // namespace

void quantized_panels(const QuantTask& t, int64_t first_panel, int64_t end_panel,
                      int64_t first_group, int64_t end_group) {
  for (const QuantizedMatrix::Segment& s : t.weights->segments()) {
    const int64_t end = std::min(end_panel, s.first_panel + s.panels);
    for (int64_t panel = std::max(first_panel, s.first_panel); panel < end; ++panel) {
      for (int64_t first = first_group; first < end_group; first += kRowGroupsTogether) {
        const int64_t n = std::min(kRowGroupsTogether, end_group - first);
        multiply_panel(t, s, panel, first, n, first - first_group, end_group - first_group);
      }
    }
  }
}

int most_quantized_rows() { return kMaxRows; }
#if HWY_TARGET == HWY_AVX2
int quantized_words_at_once() { return static_cast<int>(GroupOfRows::kWords); }
#else
int quantized_words_at_once() { return 1; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(quantized_panels);
HWY_EXPORT(most_quantized_rows);
HWY_EXPORT(quantized_words_at_once);

void product_tiles(const QuantTask& task, int64_t first_panel, int64_t end_panel,
                   int64_t first_group, int64_t end_group) {
  HWY_DYNAMIC_DISPATCH(quantized_panels)(task, first_panel, end_panel, first_group, end_group);
}

int quantized_rows() { return HWY_DYNAMIC_DISPATCH(most_quantized_rows)(); }
int adjacent_words() { return HWY_DYNAMIC_DISPATCH(quantized_words_at_once)(); }

}  // namespace tandem::cpu
#endif
