#include "engine/backend/torch/cpu/low_rank_tiles.h"

#include <algorithm>
#include <utility>

#include "engine/backend/torch/cpu/low_rank.h"
#include "engine/backend/torch/cpu/targets.h"
#include "engine/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/torch/cpu/low_rank_tiles.cpp"
#include "hwy/foreach_target.h"  // compiles this file once per target
// Included after foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Ranks and rows of a tile. With 16 registers, 8 sums leave room for numbers of both sides.
constexpr int kTileRanks = 4;
constexpr int kTileRows = 2;

constexpr size_t kHalfBlock = kLowRankBlock / 2;
constexpr size_t kLine = 64;

// How far the columns' kernel prefetches: bandwidth times latency, plus a margin.
constexpr std::ptrdiff_t kAhead = 8192;

// Types of numbers. load() reads vector i of the first half of a block, and that of the second.
template <class D>
struct Plain {
  using Lane = D;
  using V = hn::Vec<Lane>;
  using T = hn::TFromD<Lane>;
  static constexpr size_t kBytes = kLowRankBlock * sizeof(T);
  HWY_INLINE static void load(const std::byte* block, size_t i, V& a, V& b) {
    const Lane d;
    const T* const at = reinterpret_cast<const T*>(block) + i * hn::Lanes(d);
    a = hn::Load(d, at);
    b = hn::Load(d, at + kHalfBlock);
  }
};
using Floats = Plain<hn::ScalableTag<float>>;
using Doubles = Plain<hn::ScalableTag<double>>;

struct BFloats {
  using Lane = hn::ScalableTag<float>;
  using V = hn::Vec<Lane>;
  static constexpr size_t kBytes = kLowRankBlock * sizeof(uint16_t);
  HWY_INLINE static void load(const std::byte* block, size_t i, V& a, V& b) {
    const hn::RebindToUnsigned<Lane> d;
    const auto both = hn::Load(d, reinterpret_cast<const uint32_t*>(block) + i * hn::Lanes(d));
    a = hn::BitCast(Lane(), hn::ShiftLeft<16>(both));
    b = hn::BitCast(Lane(), hn::And(both, hn::Set(d, 0xffff0000u)));
  }
};

struct Halves {
  using Lane = hn::ScalableTag<float>;
  using V = hn::Vec<Lane>;
  static constexpr size_t kBytes = kLowRankBlock * sizeof(uint16_t);
  HWY_INLINE static void load(const std::byte* block, size_t i, V& a, V& b) {
    const hn::Rebind<hwy::float16_t, Lane> d;
    const auto* const at = reinterpret_cast<const hwy::float16_t*>(block) + i * hn::Lanes(Lane());
    a = hn::PromoteTo(Lane(), hn::Load(d, at));
    b = hn::PromoteTo(Lane(), hn::Load(d, at + kHalfBlock));
  }
};

HWY_INLINE void fetch(const std::byte* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLine) hwy::Prefetch(at + i);
}

// Ranks [rank, rank + Ranks) of rows [row, row + Rows).
template <class Kind, int Rows, int Ranks, class T>
HWY_INLINE void ranks_tile(const RanksTask<T>& t, int64_t rank, int64_t row) {
  using D = typename Kind::Lane;
  using V = hn::Vec<D>;
  const D d;
  const size_t lanes = hn::Lanes(d);
  const size_t row_bytes = static_cast<size_t>(t.blocks) * Kind::kBytes;
  const std::byte* const a = t.a + static_cast<size_t>(rank) * row_bytes;
  V sum[Rows][Ranks];
  HWY_UNROLL(Rows)
  for (int r = 0; r < Rows; ++r) {
    HWY_UNROLL(Ranks)
    for (int j = 0; j < Ranks; ++j) sum[r][j] = hn::Zero(d);
  }
  for (size_t k = 0; k < static_cast<size_t>(t.blocks); ++k) {
    for (size_t i = 0; i * lanes < kHalfBlock; ++i) {
      V x[Rows][2];
      HWY_UNROLL(Rows)
      for (int r = 0; r < Rows; ++r) {
        const T* const at = t.x[row + r] + k * kLowRankBlock + i * lanes;
        x[r][0] = hn::LoadU(d, at);
        x[r][1] = hn::LoadU(d, at + kHalfBlock);
      }
      HWY_UNROLL(Ranks)
      for (int j = 0; j < Ranks; ++j) {
        V w[2];
        Kind::load(a + static_cast<size_t>(j) * row_bytes + k * Kind::kBytes, i, w[0], w[1]);
        HWY_UNROLL(Rows)
        for (int r = 0; r < Rows; ++r) {
          sum[r][j] = hn::MulAdd(w[0], x[r][0], sum[r][j]);
          sum[r][j] = hn::MulAdd(w[1], x[r][1], sum[r][j]);
        }
      }
    }
    if (row > 0) continue;
    // The next ranks, or what is behind the matrix.
    HWY_UNROLL(Ranks)
    for (int j = 0; j < Ranks; ++j) {
      fetch(a + static_cast<size_t>(Ranks + j) * row_bytes + k * Kind::kBytes, Kind::kBytes);
    }
  }
  HWY_UNROLL(Rows)
  for (int r = 0; r < Rows; ++r) {
    HWY_UNROLL(Ranks)
    for (int j = 0; j < Ranks; ++j) {
      t.to[(row + r) * t.stride + rank + j] = hn::GetLane(hn::SumOfLanes(d, sum[r][j]));
    }
  }
}

template <class Kind, int Ranks, class T>
HWY_NOINLINE void ranks_of_rows(const RanksTask<T>& t, int64_t rank) {
  int64_t row = 0;
  for (; row + kTileRows <= t.rows; row += kTileRows) {
    ranks_tile<Kind, kTileRows, Ranks>(t, rank, row);
  }
  if (row < t.rows) ranks_tile<Kind, 1, Ranks>(t, rank, row);
}

template <class Kind, class T>
void ranks_of(const RanksTask<T>& t) {
  static_assert(kTileRanks == 4 && kTileRows == 2);
  for (int64_t rank = t.first; rank < t.end; rank += kTileRanks) {
    switch (std::min<int64_t>(kTileRanks, t.end - rank)) {
      case 1:
        ranks_of_rows<Kind, 1>(t, rank);
        break;
      case 2:
        ranks_of_rows<Kind, 2>(t, rank);
        break;
      case 3:
        ranks_of_rows<Kind, 3>(t, rank);
        break;
      default:
        ranks_of_rows<Kind, 4>(t, rank);
    }
  }
}

// Vectors [i, i + Vectors) of each half of a panel, of rows [row, row + Rows). ahead: memory to
// prefetch, as much as the panel has; or null
template <class Kind, int Rows, int Vectors, class T>
HWY_INLINE void columns_tile(const ColumnsTask<T>& t, int64_t panel, size_t i, int64_t row,
                             const std::byte* ahead) {
  using D = typename Kind::Lane;
  using V = hn::Vec<D>;
  const D d;
  const size_t lanes = hn::Lanes(d);
  const std::byte* b = t.b + static_cast<size_t>(panel * t.rank) * Kind::kBytes;
  V sum[Rows][Vectors][2];
  HWY_UNROLL(Rows)
  for (int r = 0; r < Rows; ++r) {
    HWY_UNROLL(Vectors)
    for (int v = 0; v < Vectors; ++v) sum[r][v][0] = sum[r][v][1] = hn::Zero(d);
  }
  const T* const ranks = t.ranks + row * t.stride;
  for (int64_t k = 0; k < t.rank; ++k, b += Kind::kBytes) {
    V w[Vectors][2];
    HWY_UNROLL(Vectors)
    for (int v = 0; v < Vectors; ++v) {
      Kind::load(b, i + static_cast<size_t>(v), w[v][0], w[v][1]);
    }
    if (ahead != nullptr) {
      fetch(ahead, Kind::kBytes);
      ahead += Kind::kBytes;
    }
    HWY_UNROLL(Rows)
    for (int r = 0; r < Rows; ++r) {
      const V number = hn::Set(d, ranks[r * t.stride + k]);
      HWY_UNROLL(Vectors)
      for (int v = 0; v < Vectors; ++v) {
        sum[r][v][0] = hn::MulAdd(w[v][0], number, sum[r][v][0]);
        sum[r][v][1] = hn::MulAdd(w[v][1], number, sum[r][v][1]);
      }
    }
  }
  const V scale = hn::Set(d, t.scale);
  const auto put = [&](T* to, V s) HWY_ATTR {
    hn::StoreU(t.add ? hn::MulAdd(scale, s, hn::LoadU(d, to)) : hn::Mul(scale, s), d, to);
  };
  const int64_t column = panel * kLowRankBlock;
  const auto left = static_cast<size_t>(std::min<int64_t>(kLowRankBlock, t.columns - column));
  HWY_UNROLL(Rows)
  for (int r = 0; r < Rows; ++r) {
    T* const to = t.to[row + r] + column;
    HWY_UNROLL(Vectors)
    for (int v = 0; v < Vectors; ++v) {
      for (size_t half = 0; half < 2; ++half) {
        const size_t at = (i + static_cast<size_t>(v)) * lanes + half * kHalfBlock;
        if (at + lanes <= left) {
          put(to + at, sum[r][v][half]);
        } else if (at < left) {
          HWY_ALIGN T some[hn::MaxLanes(D())] = {};
          std::copy_n(to + at, left - at, some);
          put(some, sum[r][v][half]);
          std::copy_n(some, left - at, to + at);
        }
      }
    }
  }
}

template <class Kind, int Rows, class T>
HWY_INLINE void columns_of_rows(const ColumnsTask<T>& t, int64_t panel, int64_t row,
                                const std::byte* ahead) {
  const size_t lanes = hn::Lanes(typename Kind::Lane());
  size_t i = 0;
  for (; (i + 2) * lanes <= kHalfBlock; i += 2) {
    columns_tile<Kind, Rows, 2>(t, panel, i, row, i == 0 ? ahead : nullptr);
  }
  if (i * lanes < kHalfBlock) {
    columns_tile<Kind, Rows, 1>(t, panel, i, row, i == 0 ? ahead : nullptr);
  }
}

template <class Kind, class T>
void columns_of(const ColumnsTask<T>& t) {
  const auto panel_bytes = static_cast<std::ptrdiff_t>(t.rank) * Kind::kBytes;
  for (int64_t panel = t.first; panel < t.end; ++panel) {
    const std::byte* ahead = t.b + panel * panel_bytes + kAhead;
    if (ahead >= t.stop) ahead = t.then == nullptr ? nullptr : t.then + (ahead - t.stop);
    int64_t row = 0;
    for (; row + kTileRows <= t.rows; row += kTileRows) {
      columns_of_rows<Kind, kTileRows>(t, panel, row, row == 0 ? ahead : nullptr);
    }
    if (row < t.rows) columns_of_rows<Kind, 1>(t, panel, row, row == 0 ? ahead : nullptr);
  }
}

}  // namespace

void ranks_of_floats(const RanksTask<float>& t) {
  switch (t.type) {
    case WeightType::kBFloat16:
      return ranks_of<BFloats>(t);
    case WeightType::kHalf:
      return ranks_of<Halves>(t);
    default:
      return ranks_of<Floats>(t);
  }
}
void ranks_of_doubles(const RanksTask<double>& t) { ranks_of<Doubles>(t); }

void columns_of_floats(const ColumnsTask<float>& t) {
  switch (t.type) {
    case WeightType::kBFloat16:
      return columns_of<BFloats>(t);
    case WeightType::kHalf:
      return columns_of<Halves>(t);
    default:
      return columns_of<Floats>(t);
  }
}
void columns_of_doubles(const ColumnsTask<double>& t) { columns_of<Doubles>(t); }

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(ranks_of_floats);
HWY_EXPORT(ranks_of_doubles);
HWY_EXPORT(columns_of_floats);
HWY_EXPORT(columns_of_doubles);

void low_rank_ranks(const RanksTask<float>& task) {
  TANDEM_CHECK(task.type != WeightType::kDouble && task.type != WeightType::kInt8);
  HWY_DYNAMIC_DISPATCH(ranks_of_floats)(task);
}
void low_rank_ranks(const RanksTask<double>& task) {
  TANDEM_CHECK(task.type == WeightType::kDouble);
  HWY_DYNAMIC_DISPATCH(ranks_of_doubles)(task);
}
void low_rank_columns(const ColumnsTask<float>& task) {
  TANDEM_CHECK(task.type != WeightType::kDouble && task.type != WeightType::kInt8);
  HWY_DYNAMIC_DISPATCH(columns_of_floats)(task);
}
void low_rank_columns(const ColumnsTask<double>& task) {
  TANDEM_CHECK(task.type == WeightType::kDouble);
  HWY_DYNAMIC_DISPATCH(columns_of_doubles)(task);
}

}  // namespace tandem::cpu
#endif
