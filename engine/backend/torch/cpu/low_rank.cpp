#include "engine/backend/torch/cpu/low_rank.h"

#include <algorithm>
#include <cstring>

#include "engine/backend/torch/cpu/low_rank_tiles.h"
#include "engine/backend/torch/cpu/norm.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/base/check.h"

namespace tandem::cpu {
namespace {

// Rows of an adapter that a thread computes together: they use its numbers while these are cached.
constexpr int64_t kUnitRows = 16;

// Ranks that the kernel computes together.
constexpr int64_t kRanksAtOnce = 4;

// Minimum work in nanoseconds that is worth waking another thread for.
constexpr double kMinNanoseconds = 2000;

int64_t blocks_of(int64_t n) { return (n + kLowRankBlock - 1) / kLowRankBlock; }

int64_t number_bytes(WeightType type) {
  TANDEM_CHECK(type != WeightType::kInt8);
  return type == WeightType::kDouble ? 8 : type == WeightType::kFloat ? 4 : 2;
}

// The place of number i of a block.
int64_t place_of(WeightType type, int64_t i) {
  constexpr int64_t kHalf = kLowRankBlock / 2;
  if (type != WeightType::kBFloat16) return i;
  return i < kHalf ? 2 * i : 2 * (i - kHalf) + 1;
}

// Calls f with a null pointer to the element type.
template <class F>
void for_elements(WeightType type, const F& f) {
  switch (number_bytes(type)) {
    case 8:
      return f(static_cast<const double*>(nullptr));
    case 4:
      return f(static_cast<const float*>(nullptr));
    default:
      return f(static_cast<const uint16_t*>(nullptr));
  }
}

// Some rows of one adapter.
template <class T>
struct Unit {
  const LowRankLayer* layer = nullptr;
  const int64_t* rows = nullptr;       // [n] of x
  int64_t n = 0;                       // 1 to kUnitRows
  T* ranks = nullptr;                  // [n, layer->ranks]
  int64_t first = 0;                   // of the rows of sums
  const LowRankLayer* next = nullptr;  // of the unit behind it; null: there is none
};

int64_t rank_tasks(const LowRankLayer& l) { return (l.ranks + kRanksAtOnce - 1) / kRanksAtOnce; }

int64_t panels(const LowRankLayer& l) {
  int64_t n = 0;
  for (const LowRankLayer::Matrix& m : l.matrices) n += blocks_of(m.columns);
  return n;
}

// The inputs of a unit's rows, in memory of the thread that uses them.
template <class T>
struct Inputs {
  std::vector<T> numbers;
  const T* row[kUnitRows] = {};
  const void* unit = nullptr;  // whose inputs these are, in call `call`
  uint64_t call = 0;
};
template <class T>
Inputs<T>& inputs() {
  thread_local Inputs<T> mine;
  return mine;
}

uint64_t next_call() {
  thread_local uint64_t calls = 0;
  return ++calls;
}

template <class T>
struct Call {
  const Unit<T>* units;
  T* to;
  int64_t width;
  Rows<T> x;
  bool sums;  // rows of `to` are those of the groups, and are replaced
  uint64_t number;

  const Inputs<T>& inputs_of(const Unit<T>& u) const {
    Inputs<T>& mine = inputs<T>();
    if (mine.call == number && mine.unit == &u) return mine;
    mine.call = number;
    mine.unit = &u;
    const bool normed = x.norm.kind != NormKind::kNone;
    const bool whole = x.in % kLowRankBlock == 0;
    const int64_t stride = blocks_of(x.in) * kLowRankBlock;
    if (normed || !whole) mine.numbers.resize(static_cast<size_t>(u.n * stride));
    for (int64_t i = 0; i < u.n; ++i) {
      const T* const from = x.x + u.rows[i] * x.in;
      if (!normed && whole) {
        mine.row[i] = from;
        continue;
      }
      T* const own = mine.numbers.data() + i * stride;
      if (normed) {
        norm_row(own, from, x.norm, x.in);
      } else {
        std::copy_n(from, x.in, own);
      }
      std::fill(own + x.in, own + stride, T{0});
      mine.row[i] = own;
    }
    return mine;
  }

  void ranks(const Unit<T>& u, int64_t begin, int64_t end) const {
    const LowRankLayer& l = *u.layer;
    low_rank_ranks(RanksTask<T>{.type = l.type,
                                .a = l.a,
                                .blocks = blocks_of(l.in),
                                .first = begin * kRanksAtOnce,
                                .end = std::min(end * kRanksAtOnce, l.ranks),
                                .x = inputs_of(u).row,
                                .rows = u.n,
                                .to = u.ranks,
                                .stride = l.ranks});
  }

  // Panels of all matrices.
  void columns(const Unit<T>& u, int64_t begin, int64_t end) const {
    const LowRankLayer& l = *u.layer;
    T* rows[kUnitRows];
    int64_t before = 0;
    for (const LowRankLayer::Matrix& m : l.matrices) {
      const int64_t n = blocks_of(m.columns);
      const int64_t first = std::clamp<int64_t>(begin - before, 0, n);
      const int64_t last = std::clamp<int64_t>(end - before, 0, n);
      before += n;
      if (first == last) continue;
      for (int64_t i = 0; i < u.n; ++i) {
        rows[i] = to + (sums ? u.first + i : u.rows[i]) * width + m.first_column;
      }
      if (m.b == nullptr) {
        const int64_t from = first * kLowRankBlock;
        const int64_t columns = std::min(last * kLowRankBlock, m.columns) - from;
        for (int64_t i = 0; sums && i < u.n; ++i) std::fill_n(rows[i] + from, columns, T{0});
        continue;
      }
      low_rank_columns(ColumnsTask<T>{.type = m.type,
                                      .b = m.b,
                                      .rank = m.rank,
                                      .columns = m.columns,
                                      .first = first,
                                      .end = last,
                                      .ranks = u.ranks + m.first_rank,
                                      .stride = l.ranks,
                                      .scale = static_cast<T>(m.scale),
                                      .to = rows,
                                      .rows = u.n,
                                      .add = !sums,
                                      .stop = l.end,
                                      .then = u.next == nullptr ? nullptr : u.next->a});
    }
  }

  // Calls f(unit, begin, end) for tasks [begin, end) of all units' tasks.
  template <class Tasks, class F>
  void each(int64_t begin, int64_t end, const Tasks& tasks, const F& f) const {
    for (const Unit<T>* u = units; begin < end; ++u) {
      const int64_t n = tasks(*u->layer);
      if (begin < n) f(*u, begin, std::min(end, n));
      begin = std::max<int64_t>(begin - n, 0);
      end -= n;
    }
  }
};

// Nanoseconds of one thread, at 12 bytes of an adapter or 25 products per nanosecond.
template <class T>
double time_of(const std::vector<Unit<T>>& units) {
  double time = 0;
  for (const Unit<T>& u : units) {
    const auto bytes = static_cast<double>(u.layer->end - u.layer->a);
    const double numbers = bytes / static_cast<double>(number_bytes(u.layer->type));
    time += std::max(bytes / 12, numbers * static_cast<double>(u.n) / 25);
  }
  return time;
}

template <class T>
void run(T* to, int64_t width, const Rows<T>& x, std::span<const LowRankRows> groups, bool sums) {
  thread_local std::vector<Unit<T>> units;
  thread_local std::vector<T> ranks;
  units.clear();
  size_t all_ranks = 0;
  int64_t first = 0;
  for (const LowRankRows& g : groups) {
    TANDEM_CHECK(g.layer->in == x.in);
    for (int64_t i = 0; i < g.n; i += kUnitRows) {
      const int64_t n = std::min(kUnitRows, g.n - i);
      if (!units.empty()) units.back().next = g.layer;
      units.push_back({g.layer, g.rows + i, n, nullptr, first + i});
      all_ranks += static_cast<size_t>(n * g.layer->ranks);
    }
    first += g.n;
  }
  if (units.empty()) return;
  if (ranks.size() < all_ranks) ranks.resize(all_ranks);
  T* next = ranks.data();
  for (Unit<T>& u : units) {
    u.ranks = next;
    next += u.n * u.layer->ranks;
  }
  const auto count = static_cast<int64_t>(units.size());
  const Call<T> call{units.data(), to, width, x, sums, next_call()};
  const int64_t threads = team_size();
  const double time = threads == 1 ? 0 : time_of(units);
  const auto whole = [&call](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const Unit<T>& u = call.units[begin];
      call.ranks(u, 0, rank_tasks(*u.layer));
      call.columns(u, 0, panels(*u.layer));
    }
  };
  if (time < kMinNanoseconds) return whole(0, count);
  if (count % threads == 0 || count >= 4 * threads) return parallel_for(count, 1, whole);
  if (time < 2 * kMinNanoseconds) return whole(0, count);  // two loops do not pay
  int64_t all_tasks = 0, all_panels = 0;
  for (const Unit<T>& u : units) {
    all_tasks += rank_tasks(*u.layer);
    all_panels += panels(*u.layer);
  }
  const auto share = [&](int64_t n) { return (n + 2 * threads - 1) / (2 * threads); };
  parallel_for(all_tasks, share(all_tasks), [&call](int64_t begin, int64_t end) {
    call.each(begin, end, rank_tasks,
              [&](const Unit<T>& u, int64_t from, int64_t last) { call.ranks(u, from, last); });
  });
  parallel_for(all_panels, share(all_panels), [&call](int64_t begin, int64_t end) {
    call.each(begin, end, panels,
              [&](const Unit<T>& u, int64_t from, int64_t last) { call.columns(u, from, last); });
  });
}

}  // namespace

int64_t low_rank_a_bytes(WeightType type, int64_t ranks, int64_t in) {
  return ranks * blocks_of(in) * kLowRankBlock * number_bytes(type);
}

int64_t low_rank_b_bytes(WeightType type, int64_t columns, int64_t rank) {
  return blocks_of(columns) * rank * kLowRankBlock * number_bytes(type);
}

void pack_low_rank_a(std::byte* to, WeightType type, int64_t in, int64_t first, int64_t n,
                     const void* from) {
  for_elements(type, [&]<class E>(const E*) {
    const auto* const source = static_cast<const E*>(from);
    const int64_t stride = blocks_of(in) * kLowRankBlock;
    for (int64_t r = 0; r < n; ++r) {
      E* const row = reinterpret_cast<E*>(to) + (first + r) * stride;
      for (int64_t k = 0; k < in; ++k) {
        row[k / kLowRankBlock * kLowRankBlock + place_of(type, k % kLowRankBlock)] =
            source[r * in + k];
      }
    }
  });
}

void pack_low_rank_b(std::byte* to, WeightType type, int64_t rank, int64_t first, int64_t n,
                     const void* from) {
  for_elements(type, [&]<class E>(const E*) {
    const auto* const source = static_cast<const E*>(from);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t column = first + r;
      E* const panel = reinterpret_cast<E*>(to) + column / kLowRankBlock * rank * kLowRankBlock;
      for (int64_t k = 0; k < rank; ++k) {
        panel[k * kLowRankBlock + place_of(type, column % kLowRankBlock)] = source[r * rank + k];
      }
    }
  });
}

void add_low_rank(float* to, int64_t width, const Rows<float>& x,
                  std::span<const LowRankRows> groups) {
  run(to, width, x, groups, /*sums=*/false);
}
void add_low_rank(double* to, int64_t width, const Rows<double>& x,
                  std::span<const LowRankRows> groups) {
  run(to, width, x, groups, /*sums=*/false);
}
void low_rank_sums(float* to, int64_t width, const Rows<float>& x,
                   std::span<const LowRankRows> groups) {
  run(to, width, x, groups, /*sums=*/true);
}
void low_rank_sums(double* to, int64_t width, const Rows<double>& x,
                   std::span<const LowRankRows> groups) {
  run(to, width, x, groups, /*sums=*/true);
}

}  // namespace tandem::cpu
