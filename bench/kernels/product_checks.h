// Checks of packed products of 1 to 16 rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernels/exact.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/product.h"

namespace tandem::cuda::program {

struct Matrix {
  std::string name;
  int64_t outs, in;
  ProductThen then = ProductThen::kStore;
  bool normed = false;  // of normalized rows
  bool wide = false;    // fp32 results
  bool bias = false;

  int64_t width() const { return then == ProductThen::kGate ? outs / 2 : outs; }
};

inline std::vector<Matrix> matrices(const Shape& s, int kv_heads) {
  const int64_t q = int64_t{s.heads} * s.head_dim, kv = int64_t{kv_heads} * s.head_dim;
  if (kv_heads != s.heads) {
    return {
        {"qkv_of_" + std::to_string(kv_heads), q + 2 * kv, s.hidden, ProductThen::kStore, true}};
  }
  return {{"qkv", q + 2 * kv, s.hidden, ProductThen::kStore, true, false, true},
          {"o", s.hidden, q, ProductThen::kAdd, false, true},
          {"gate_up", 2 * s.inner, s.hidden, ProductThen::kGate, true},
          {"down", s.hidden, s.inner, ProductThen::kAdd, false, true},
          {"head", s.vocab, s.hidden, ProductThen::kStore, true, true}};
}

// y[row][out] = sum over k of x[row][k] weight(out, k), [kMostProductRows, outs], in fp64.
template <class Weights>
std::vector<double> exact_products(const std::vector<double>& x, int64_t outs, int64_t in,
                                   const Weights& weights) {
  constexpr int kRows = kMostProductRows;
  std::vector<double> turned(static_cast<size_t>(in * kRows)), y(static_cast<size_t>(outs * kRows));
  for (int64_t k = 0; k < in; ++k) {
    for (int r = 0; r < kRows; ++r) {
      turned[static_cast<size_t>(k * kRows + r)] = x[static_cast<size_t>(r * in + k)];
    }
  }
  on_all_cores(outs, [&](int64_t begin, int64_t end) {
    std::vector<double> w(static_cast<size_t>(in));
    for (int64_t out = begin; out < end; ++out) {
      weights(out, w.data());
      double sum[kRows] = {};
      for (int64_t k = 0; k < in; ++k) {
        const double* const row = turned.data() + k * kRows;
        for (int r = 0; r < kRows; ++r) sum[r] += w[static_cast<size_t>(k)] * row[r];
      }
      for (int r = 0; r < kRows; ++r) y[static_cast<size_t>(r * outs + out)] = sum[r];
    }
  });
  return y;
}

// Runs a product for each number of rows and compares it. go(n, out, sums): launches it for n rows
// of kMostProductRows; exactly one of out and sums is not null.
template <class Go>
void check_product(Report& report, const std::string& name, const Matrix& m,
                   const std::vector<double>& exact, const std::vector<float>& bias, uint64_t seed,
                   std::vector<int> counts, const Go& go) {
  constexpr int kRows = kMostProductRows;
  const int64_t width = m.width(), n = kRows * width;
  const bool wide = m.wide;
  const std::vector<float> before = numbers<float>(n, seed + 7);
  std::vector<double> want(static_cast<size_t>(n));
  const auto y = [&](int64_t r, int64_t out) {
    return exact[static_cast<size_t>(r * m.outs + out)] +
           (bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<size_t>(out)]));
  };
  for (int64_t i = 0; i < n; ++i) {
    const int64_t r = i / width, c = i % width;
    want[static_cast<size_t>(i)] =
        m.then == ProductThen::kGate ? silu(y(r, c)) * y(r, width + c)
        : m.then == ProductThen::kAdd
            ? y(r, c) + static_cast<double>(before[static_cast<size_t>(i)])
            : y(r, c);
  }
  Buffer<BFloat16> out(wide ? 1 : n);
  Buffer<float> sums(wide ? n : 1);
  std::vector<float> first;
  bool same = true, untouched = true;
  Difference off(wide ? kExact : kBFloat16);
  std::sort(counts.rbegin(), counts.rend());
  for (const int rows : counts) {
    out.poison();
    sums.poison();
    if (m.then == ProductThen::kAdd) sums.write(before);
    go(rows, out, sums);
    finish(name.c_str());
    std::vector<float> got;
    if (wide) {
      got = sums.read();
    } else {
      for (const BFloat16 x : out.read()) got.push_back(static_cast<float>(x));
    }
    const int64_t filled = rows * width;
    for (int64_t i = 0; i < filled; ++i) {
      off.add(static_cast<double>(got[static_cast<size_t>(i)]), want[static_cast<size_t>(i)]);
    }
    if (first.empty()) first = got;
    same = same && equal_bits(first.data(), got.data(), filled);
    for (int64_t i = filled; i < n; ++i) {
      const float x = got[static_cast<size_t>(i)];
      untouched = untouched && (m.then == ProductThen::kAdd ? x == before[static_cast<size_t>(i)]
                                                            : std::isnan(x));
    }
  }
  report.check(name, off.value(), kMostOfSums);
  report.same(name + ".row_bits", same);
  report.same(name + ".other_rows_untouched", untouched);
}

// Packed products of 1 to 16 rows, with different grids.
inline void check_matrix(Report& report, const Shape& shape, const Matrix& m, uint64_t seed) {
  const std::string name = "product." + m.name;
  const bool gated = m.then == ProductThen::kGate;
  const float scale = std::exp2(-std::round(std::log2(static_cast<float>(m.in)) / 2));
  const PackedShape packed_shape{m.outs, m.in, gated};
  Buffer<BFloat16> packed(packed_shape.words() * 8);
  {
    const Buffer<BFloat16> weights(m.outs * m.in, seed, scale);
    pack<BFloat16>(stream, packed.ptr(), weights.ptr(), packed_shape);
    finish("pack");
  }
  const std::vector<float> rows = residual_rows(m.in, seed + 1);
  const std::vector<float> weight = norm_weights(m.in, seed + 2);
  const Buffer<float> residual(rows), norm_weight(weight);
  Buffer<BFloat16> x(kMostProductRows * m.in);
  const NormArguments<float> of_norm{false, norm_weight.ptr(), nullptr, kEps};
  norm<BFloat16>(stream, x.ptr(), residual.ptr(), of_norm, kMostProductRows, m.in);
  finish("norm");
  const std::vector<double> inputs = as_doubles(x.read());
  Difference off(kBFloat16);
  const std::vector<double> normed = exact_norm(rows, weight, kEps, m.in);
  for (size_t i = 0; i < inputs.size(); ++i) off.add(inputs[i], normed[i]);
  report.check(name + ".norm", off.value(), kMostOfSums);

  const std::vector<BFloat16> bias =
      m.bias ? numbers<BFloat16>(m.outs, seed + 3) : std::vector<BFloat16>(1);
  const Buffer<BFloat16> device_bias(bias);
  std::vector<float> host_bias;
  for (size_t i = 0; m.bias && i < bias.size(); ++i) {
    host_bias.push_back(static_cast<float>(bias[i]));
  }
  const std::vector<double> exact =
      exact_products(inputs, m.outs, m.in, [&](int64_t out, double* w) {
        for (int64_t k = 0; k < m.in; ++k) {
          w[k] = static_cast<double>(number_at(seed, out * m.in + k) * scale);
        }
      });
  std::vector<int> counts;
  for (int n = 1; n <= kMostProductRows; ++n) counts.push_back(n);
  int calls = 0;
  check_product(report, name, m, exact, host_bias, seed, counts, [&](int n, auto& out, auto& sums) {
    ProductArguments<BFloat16> a;
    a.shape = packed_shape;
    a.weights = packed.ptr();
    a.rows = n;
    a.x = x.ptr();
    if (m.bias) a.bias = device_bias.ptr();
    a.then = m.then;
    if (m.wide) {
      a.sums = sums.ptr();
    } else {
      a.out = out.ptr();
    }
    product<BFloat16>(stream, a, int64_t{shape.multiprocessors} * (1 + calls++ % 8));
  });
}

}  // namespace tandem::cuda::program
