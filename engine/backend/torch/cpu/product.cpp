#include "engine/backend/torch/cpu/product.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/backend/torch/cpu/math.h"
#include "engine/backend/torch/cpu/parallel.h"

// Vectors are passed between inlined functions only, so it does not matter how they would be
// passed.
#pragma clang diagnostic ignored "-Wpsabi"

// Into functions compiled for several processors.
#define TANDEM_INLINE __attribute__((always_inline)) inline

namespace tandem::cpu {
namespace {

constexpr int kOuts = 4;        // weight rows of a tile
constexpr int kMostRows = 4;    // rows of a tile
constexpr int64_t kChunk = 64;  // rows for which weights are read once: their x stays in L2

// A: float or double. 64 bytes: a register of AVX-512, two of AVX2.
template <class A>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int kCount = 16;
  using type = float __attribute__((ext_vector_type(16)));
};
template <>
struct Lanes<double> {
  static constexpr int kCount = 8;
  using type = double __attribute__((ext_vector_type(8)));
};
template <class A>
using lanes_t = typename Lanes<A>::type;

template <class A>
TANDEM_INLINE lanes_t<A> load(const A* from) {
  lanes_t<A> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
TANDEM_INLINE lanes_t<float> load(const c10::BFloat16* from) {
  using Halves = uint16_t __attribute__((ext_vector_type(16)));
  using Words = uint32_t __attribute__((ext_vector_type(16)));
  Halves h;
  std::memcpy(&h, from, sizeof h);
  return __builtin_bit_cast(lanes_t<float>, __builtin_convertvector(h, Words) << 16);
}
// The first n of them, and zeros.
template <class A, class W>
TANDEM_INLINE lanes_t<A> load_part(const W* from, int64_t n) {
  W part[Lanes<A>::kCount] = {};
  std::memcpy(part, from, static_cast<size_t>(n) * sizeof(W));
  return load(part);
}

// Sums of four vectors, each pairwise: lane i to lane i + 8, + 4, + 2, + 1.
TANDEM_INLINE void sum_four(const lanes_t<float>* v, float* sum) {
  const auto halves = [](lanes_t<float> a, lanes_t<float> b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30,
                                   31);
  };
  const lanes_t<float> ab = halves(v[0], v[1]);
  const lanes_t<float> cd = halves(v[2], v[3]);
  const lanes_t<float> all =
      __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
      __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  const auto pairs = __builtin_shufflevector(all, all, 0, 1, 4, 5, 8, 9, 12, 13) +
                     __builtin_shufflevector(all, all, 2, 3, 6, 7, 10, 11, 14, 15);
  const auto one = __builtin_shufflevector(pairs, pairs, 0, 2, 4, 6) +
                   __builtin_shufflevector(pairs, pairs, 1, 3, 5, 7);
  std::memcpy(sum, &one, sizeof one);
}
template <class A>
TANDEM_INLINE A sum_one(lanes_t<A> v) {
  constexpr int n = Lanes<A>::kCount;
  A s[n];
  std::memcpy(s, &v, sizeof v);
  for (int step = n / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) s[i] += s[i + step];
  }
  return s[0];
}

template <class A, class W, class O>
struct Task {
  O* out;
  const A* x;
  const W* weight;
  const W* bias;
  int64_t rows, outs, in;
  bool add;

  TANDEM_INLINE void put(int64_t r, int64_t n, A sum) const {
    if (bias != nullptr) sum += static_cast<A>(bias[n]);
    O& o = out[r * outs + n];
    o = add ? static_cast<O>(static_cast<A>(o) + sum) : static_cast<O>(sum);
  }
};

// Rows r .. r + M - 1 with weight rows n .. n + N - 1.
template <int M, int N, class A, class W, class O>
TANDEM_INLINE void tile(const Task<A, W, O>& t, int64_t r, int64_t n) {
  constexpr int64_t step = Lanes<A>::kCount;
  lanes_t<A> sum[M][N] = {};
  const A* x = t.x + r * t.in;
  const W* w = t.weight + n * t.in;
  int64_t k = 0;
  for (; k + step <= t.in; k += step) {
    lanes_t<A> weight[N];
    for (int j = 0; j < N; ++j) {
      weight[j] = load(w + j * t.in + k);
      // The same place of the next tile's rows. (Beyond the end of memory it does nothing.)
      if (M == 1) __builtin_prefetch(w + (j + N) * t.in + k);
    }
    for (int i = 0; i < M; ++i) {
      const lanes_t<A> row = load(x + i * t.in + k);
      for (int j = 0; j < N; ++j) sum[i][j] += row * weight[j];
    }
  }
  if (k < t.in) {
    for (int j = 0; j < N; ++j) {
      const lanes_t<A> weight = load_part<A>(w + j * t.in + k, t.in - k);
      for (int i = 0; i < M; ++i) {
        sum[i][j] += load_part<A>(x + i * t.in + k, t.in - k) * weight;
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    A total[N];
    if constexpr (N == 4 && std::is_same_v<A, float>) {
      sum_four(sum[i], total);
    } else {
      for (int j = 0; j < N; ++j) total[j] = sum_one<A>(sum[i][j]);
    }
    for (int j = 0; j < N; ++j) t.put(r + i, n + j, total[j]);
  }
}

// M rows with `count` times N weight rows.
template <int M, int N, class A, class W, class O>
TANDEM_INLINE void tiles(const Task<A, W, O>& t, int64_t r, int64_t n, int count) {
  for (int i = 0; i < count; ++i) tile<M, N>(t, r, n + i * N);
}

// All rows of a chunk with the same weight rows, at most kMost of them at a time. The weights stay
// in L1 for all of them.
template <int kMost, int N, class A, class W, class O>
TANDEM_INLINE void strip(const Task<A, W, O>& t, int64_t begin, int64_t end, int64_t n, int count) {
  int64_t r = begin;
  for (; r + kMost <= end; r += kMost) tiles<kMost, N>(t, r, n, count);
  if constexpr (kMost > 1) {
    if (end - r == 3) tiles<3, N>(t, r, n, count);
    if (end - r == 2) tiles<2, N>(t, r, n, count);
    if (end - r == 1) tiles<1, N>(t, r, n, count);
  }
}

template <int kMost, class A, class W, class O>
TANDEM_INLINE void weight_rows(const Task<A, W, O>& t, int64_t begin, int64_t end) {
  for (int64_t r = 0; r < t.rows; r += kChunk) {
    const int64_t last = std::min(t.rows, r + kChunk);
    int64_t n = begin;
    for (; n + 2 * kOuts <= end; n += 2 * kOuts) strip<kMost, kOuts>(t, r, last, n, 2);
    for (; n + kOuts <= end; n += kOuts) strip<kMost, kOuts>(t, r, last, n, 1);
    for (; n < end; ++n) strip<kMost, 1>(t, r, last, n, 1);
  }
}

// Sixteen registers hold one row of four sums, thirty-two hold four rows of them.
template <class A, class W, class O>
void weight_rows_avx2(const Task<A, W, O>& t, int64_t begin, int64_t end) {
  weight_rows<1>(t, begin, end);
}
template <class A, class W, class O>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void weight_rows_avx512(
    const Task<A, W, O>& t, int64_t begin, int64_t end) {
  weight_rows<kMostRows>(t, begin, end);
}

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
}

template <class A, class W, class O>
void run(const Task<A, W, O>& t) {
  const int64_t cost = std::max<int64_t>(1, t.in * t.rows);
  // Ranges small enough to share out evenly, large enough to be worth it.
  const int64_t share = (t.outs / (4 * team_size()) + kOuts) / kOuts * kOuts;
  const int64_t least = (16384 / cost + kOuts) / kOuts * kOuts;
  const bool wide = has_avx512();
  parallel_for(t.outs, std::max(share, least), [&](int64_t begin, int64_t end) {
    wide ? weight_rows_avx512(t, begin, end) : weight_rows_avx2(t, begin, end);
  });
}

}  // namespace

template <class T, class O>
void product(O* out, const T* x, const T* weight, const T* bias, int64_t rows, int64_t outs,
             int64_t in, bool add) {
  using A = accumulate_t<T>;
  if constexpr (std::is_same_v<A, T>) {
    run(Task<A, T, O>{out, x, weight, bias, rows, outs, in, add});
  } else {
    thread_local std::vector<A> wide;
    wide.assign(x, x + rows * in);
    run(Task<A, T, O>{out, wide.data(), weight, bias, rows, outs, in, add});
  }
}

template void product(float*, const float*, const float*, const float*, int64_t, int64_t, int64_t,
                      bool);
template void product(double*, const double*, const double*, const double*, int64_t, int64_t,
                      int64_t, bool);
template void product(float*, const double*, const double*, const double*, int64_t, int64_t,
                      int64_t, bool);
template void product(float*, const c10::BFloat16*, const c10::BFloat16*, const c10::BFloat16*,
                      int64_t, int64_t, int64_t, bool);
template void product(c10::BFloat16*, const c10::BFloat16*, const c10::BFloat16*,
                      const c10::BFloat16*, int64_t, int64_t, int64_t, bool);

}  // namespace tandem::cpu
