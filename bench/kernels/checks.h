// Checks of kernels against fp64 on the host, at the shapes of a model. They also run on the
// emulated device, with small shapes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/attention.h"
#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "engine/backend/torch/cuda/kernels/product.h"
#include "engine/backend/torch/cuda/kernels/quantized.h"
#include "engine/backend/torch/cuda/kernels/readout.h"

namespace tandem::cuda::program {

using Rows = std::vector<BFloat16>;

inline double silu(double x) { return x / (1 + std::exp(-x)); }

template <class T>
bool equal_bits(const T* a, const T* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(T)) == 0;
}

// -- Products -------------------------------------------------------------------------------------

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

// Rows of unlike size, fp32: [kMostProductRows, in].
inline std::vector<float> residual_rows(int64_t in, uint64_t seed) {
  std::vector<float> x = numbers<float>(kMostProductRows * in, seed);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= 0.25f * static_cast<float>(1 + static_cast<int64_t>(i) / in % 5);
  }
  return x;
}

inline std::vector<float> norm_weights(int64_t in, uint64_t seed) {
  std::vector<float> w = numbers<float>(in, seed, 0.5f);
  for (float& x : w) x += 1;
  return w;
}

template <class T>
std::vector<double> as_doubles(const std::vector<T>& from) {
  std::vector<double> all;
  all.reserve(from.size());
  for (const T& x : from) all.push_back(static_cast<double>(x));
  return all;
}

// An RMS norm: rows [rows, width].
inline std::vector<double> exact_norm(const std::vector<float>& x, const std::vector<float>& weight,
                                      double eps, int64_t width) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    double squares = 0;
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      squares += static_cast<double>(x[row + i]) * static_cast<double>(x[row + i]);
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      y[row + i] = static_cast<double>(weight[i]) * static_cast<double>(x[row + i]) * scale;
    }
  }
  return y;
}

inline constexpr float kEps = 1e-5f;

// Packed products of 1 to 16 rows, with the norm inside and apart, and different grids.
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
  for (int n = 1; m.normed && n <= kMostNormedRows; ++n) counts.push_back(n);  // again, apart
  int calls = 0;
  check_product(report, name, m, exact, host_bias, seed, counts, [&](int n, auto& out, auto& sums) {
    ProductArguments<BFloat16> a;
    a.shape = packed_shape;
    a.weights = packed.ptr();
    a.rows = n;
    if (m.normed && n <= kMostNormedRows && calls % 2 == 0) {
      a.residual = residual.ptr();
      a.norm = of_norm;
    } else {
      a.x = x.ptr();
    }
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

// -- Products with weights in blocks
// ----------------------------------------------------------------

// A random matrix in blocks, in the device's layout (kernels/quantized.h).
class RandomBlocks {
 public:
  RandomBlocks(QuantType type, int64_t outs, int64_t in, bool pairs, uint64_t seed)
      : shape_{outs, in, pairs, type}, seed_(seed) {}

  const BlockShape& shape() const { return shape_; }
  // One row of the matrix.
  void row(int64_t out, double* w) const {
    for (int64_t k = 0; k < shape_.in; ++k) {
      const int64_t group = k / kGroupInputs;
      const auto q = static_cast<double>(code(out, k));
      w[k] = of_bytes() ? half(out, group, 0) * (q - 128)
                        : half(out, group / 8, 0) * factor(out, group, 0) * q -
                              half(out, group / 8, 1) * factor(out, group, 1);
    }
  }
  std::vector<uint4> packed() const {
    std::vector<uint4> all(static_cast<size_t>(shape_.words()));
    const int words = layout_of(shape_.type).step_words();
    on_all_cores(shape_.tiles(), [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        for (int step = 0; step < shape_.steps(); ++step) {
          pack_step(all.data() + (tile * shape_.steps() + step) * words, tile, step);
        }
      }
    });
    return all;
  }

 private:
  bool of_bytes() const { return shape_.type == QuantType::kQ80; }
  uint32_t code(int64_t out, int64_t k) const {
    return bits_at(seed_, out * shape_.in + k) >> (of_bytes() ? 16 : 20);
  }
  uint16_t half_bits(int64_t out, int64_t block, int which) const {
    const uint32_t bits = bits_at(seed_ + 1, (out * shape_.in + block) * 2 + which);
    const float most = of_bytes() ? 0x1p-13f : which == 0 ? 0x1p-14f : 0x1p-11f;
    return Half(most * (1 + static_cast<float>(bits % 256) / 256)).bits;
  }
  double half(int64_t out, int64_t block, int which) const {
    Half h;
    h.bits = half_bits(out, block, which);
    return static_cast<double>(h);
  }
  uint32_t factor(int64_t out, int64_t group, int which) const {
    return bits_at(seed_ + 2, (out * shape_.in + group) * 2 + which) % 64;
  }
  int64_t out_of(int64_t tile, int r) const {
    const int64_t i = (shape_.pairs ? tile / 2 : tile) * kTileOuts + r;
    return i < shape_.width() ? i + (shape_.pairs ? tile % 2 * shape_.width() : 0) : -1;
  }

  void pack_step(uint4* to, int64_t tile, int step) const {
    std::memset(to, 0, static_cast<size_t>(layout_of(shape_.type).step_words()) * sizeof(uint4));
    const auto words = [&](int64_t i) { return reinterpret_cast<uint32_t*>(to + i); };
    const int scales = layout_of(shape_.type).code_words() * kWarp;
    for (int j = 0; j < kStepGroups; ++j) {
      const int64_t group = int64_t{step} * kStepGroups + j;
      if (group >= shape_.groups()) break;
      for (int lane = 0; lane < kWarp; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const int64_t out = out_of(tile, lane / 4 + i % 2 * 8);
          if (out < 0) continue;
          for (int b = 0; b < 4; ++b) {
            const int64_t k = group * kGroupInputs + i / 2 * 16 + lane % 4 * 4 + b;
            const uint32_t q = code(out, k) << (8 * b);
            if (of_bytes()) {
              words(int64_t{j} * kWarp + lane)[i] |= q;
            } else {
              words(int64_t{j} / 2 * kWarp + lane)[j % 2 * 2 + i % 2] |= q << (i / 2 * 4);
            }
          }
        }
      }
      for (int r = 0; r < kTileOuts; ++r) {
        const int64_t out = out_of(tile, r);
        if (out < 0) continue;
        const uint32_t scale = of_bytes() ? half_bits(out, group, 0)
                                          : factor(out, group, 0) | factor(out, group, 1) << 8;
        words(scales + r % 8)[j] |= scale << (r / 8 * 16);
        if (of_bytes()) continue;
        words(scales + 8)[r % 8 * 2 + r / 8] =
            half_bits(out, group / 8, 0) | uint32_t{half_bits(out, group / 8, 1)} << 16;
      }
    }
  }

  BlockShape shape_;
  uint64_t seed_;
};

template <QuantType kType>
void launch_blocks(const BlockArguments<BFloat16>& a, int64_t most_blocks) {
  const bool gated = a.then == ProductThen::kGate;
  if (a.rows > kTileRows) {
    gated ? launch_block_product<BFloat16, kType, 2, 2>(stream, a, most_blocks)
          : launch_block_product<BFloat16, kType, 1, 2>(stream, a, most_blocks);
  } else {
    gated ? launch_block_product<BFloat16, kType, 2, 1>(stream, a, most_blocks)
          : launch_block_product<BFloat16, kType, 1, 1>(stream, a, most_blocks);
  }
}

// Two types only: all eight take minutes to compile.
inline void block_product_of(const BlockArguments<BFloat16>& a, int64_t most_blocks) {
  a.shape.type == QuantType::kQ80 ? launch_blocks<QuantType::kQ80>(a, most_blocks)
                                  : launch_blocks<QuantType::kQ4K>(a, most_blocks);
}

inline const char* name_of(QuantType type) { return type == QuantType::kQ80 ? "q8_0" : "q4_k"; }

// Rows in 8 bits: codes and scales of a device, and their values.
struct RoundedRows {
  RoundedRows(int64_t outs, int64_t in, QuantType type)
      : shape{outs, in, false, type},
        codes(BlockRows::code_bytes(shape.steps(), kMostProductRows)),
        scales(BlockRows::scale_count(shape.steps())) {}

  BlockRows view() const { return {codes.ptr(), scales.ptr()}; }
  std::vector<double> values() const {
    const std::vector<uint8_t> c = codes.read();
    const std::vector<GroupScale> s = scales.read();
    std::vector<double> all;
    for (int64_t r = 0; r < kMostProductRows; ++r) {
      for (int64_t k = 0; k < shape.in; ++k) {
        const int64_t group = k / kGroupInputs, i = k % kGroupInputs;
        const int64_t of_lane = (r * shape.steps() + group / kStepGroups) * 4 + i % 16 / 4;
        const int64_t at = of_lane * kGroupInputs + (group % kStepGroups * 2 + i / 16) * 4 + i % 4;
        all.push_back(
            static_cast<double>(static_cast<int8_t>(c[static_cast<size_t>(at)])) *
            static_cast<double>(s[static_cast<size_t>(group * kMostProductRows + r)].scale));
      }
    }
    return all;
  }

  BlockShape shape;
  Buffer<uint8_t> codes;
  Buffer<GroupScale> scales;
};

// The largest difference of rounded rows, in codes of their group: 1/2 if all are nearest.
inline double off_in_codes(const std::vector<double>& rounded, const std::vector<double>& x) {
  double worst = 0;
  for (size_t group = 0; group < x.size(); group += kGroupInputs) {
    double top = 1e-30;
    for (size_t i = 0; i < kGroupInputs; ++i) top = std::max(top, std::abs(x[group + i]));
    for (size_t i = 0; i < kGroupInputs; ++i) {
      const double off = std::abs(rounded[group + i] - x[group + i]) / top * 127;
      if (!(off <= worst)) worst = off;
    }
  }
  return worst;
}

inline void check_blocks(Report& report, const Shape& shape, const Matrix& m, QuantType type,
                         uint64_t seed) {
  const std::string name = std::string("blocks.") + name_of(type) + "." + m.name;
  const RandomBlocks matrix(type, m.outs, m.in, m.then == ProductThen::kGate, seed);
  const Buffer<uint4> weights(matrix.packed());
  const std::vector<float> rows = residual_rows(m.in, seed + 4);
  const std::vector<float> weight = norm_weights(m.in, seed + 5);
  const Buffer<float> residual(rows), norm_weight(weight);
  const RoundedRows rounded(m.outs, m.in, type);
  NormArguments<float> of_norm;
  std::vector<double> want = as_doubles(rows);
  if (m.normed) {
    of_norm = {false, norm_weight.ptr(), nullptr, kEps};
    want = exact_norm(rows, weight, kEps, m.in);
  }
  quantize_rows<float>(stream, rounded.view(), residual.ptr(), kMostProductRows, m.in, of_norm);
  finish("quantize_rows");
  const std::vector<double> x = rounded.values();
  report.check(name + ".rows", off_in_codes(x, want), 0.502);
  const std::vector<double> exact =
      exact_products(x, m.outs, m.in, [&](int64_t out, double* w) { matrix.row(out, w); });
  int calls = 0;
  check_product(report, name, m, exact, {}, seed, {1, 2, 7, 8, 9, 16},
                [&](int n, auto& out, auto& sums) {
                  // The scales of rows past n are zero.
                  quantize_rows<float>(stream, rounded.view(), residual.ptr(), n, m.in, of_norm);
                  launched("quantize_rows");
                  BlockArguments<BFloat16> a;
                  a.shape = matrix.shape();
                  a.weights = weights.ptr();
                  a.x = rounded.view();
                  a.rows = n;
                  a.then = m.then;
                  if (m.wide) {
                    a.sums = sums.ptr();
                  } else {
                    a.out = out.ptr();
                  }
                  block_product_of(a, int64_t{shape.multiprocessors} * (1 + calls++ % 8));
                });
}

// -- Attention
// --------------------------------------------------------------------------------------

// The rows of a launch, on the device, with their columns on the host.
class PlacedRows {
 public:
  PlacedRows(RowColumns columns, const std::vector<int32_t>& pages,
             const std::vector<int32_t>& extra, int page_rows)
      : columns_(std::move(columns)),
        extra_(extra),
        pages_(pages),
        position_(columns_.position),
        table_(columns_.table),
        first_key_(columns_.first_key),
        dense_end_(columns_.dense_end),
        extra_begin_(columns_.extra_begin),
        extra_end_(columns_.extra_end),
        prompts_(columns_.prompts),
        device_extra_(extra),
        device_pages_(pages),
        slot_(columns_.slot) {
    view_.rows = columns_.rows();
    view_.page_rows = page_rows;
    view_.position = position_.raw();
    view_.slot = slot_.raw();
    view_.table = table_.raw();
    view_.first_key = first_key_.raw();
    view_.dense_end = dense_end_.raw();
    view_.extra_begin = extra_begin_.raw();
    view_.extra_end = extra_end_.raw();
    view_.prompts = prompts_.raw();
    view_.extra = device_extra_.raw();
    view_.pages = device_pages_.raw();
    view_.most_keys = columns_.most_keys();
    view_.together = RowColumns::together(columns_.table);
  }

  RowView& view() { return view_; }
  const RowView& view() const { return view_; }
  const RowColumns& columns() const { return columns_; }
  // Cache rows that row r sees.
  std::vector<int> keys_of(int r) const {
    RowView host = view_;
    host.position = columns_.position.data();
    host.first_key = columns_.first_key.data();
    host.dense_end = columns_.dense_end.data();
    host.extra_begin = columns_.extra_begin.data();
    host.extra_end = columns_.extra_end.data();
    host.prompts = columns_.prompts.data();
    std::vector<int> keys;
    for (int k = host.first_dense(r); k < host.dense_end[r]; ++k) keys.push_back(k);
    for (int e = host.first_extra(r); e < host.extra_end[r]; ++e) {
      keys.push_back(extra_[static_cast<size_t>(e)]);
    }
    return keys;
  }
  // The place of a cache row of row r's sequence: page and row in it.
  std::pair<int64_t, int> place_of(int r, int key) const {
    const int32_t table = columns_.table[static_cast<size_t>(r)];
    return {pages_[static_cast<size_t>(table + key / view_.page_rows)], key % view_.page_rows};
  }

 private:
  RowColumns columns_;
  std::vector<int32_t> extra_, pages_;
  Buffer<int32_t> position_, table_, first_key_, dense_end_, extra_begin_, extra_end_, prompts_;
  Buffer<int32_t> device_extra_, device_pages_;
  Buffer<int64_t> slot_;
  RowView view_;
};

// Keys and values of random numbers, and tables of pages in mixed order.
struct KvNumbers {
  KvNumbers(const Shape& s, int kv_heads, int64_t pages, uint64_t seed)
      : heads(s.heads),
        kv_heads(kv_heads),
        head_dim(s.head_dim),
        page_rows(s.page_rows),
        seed(seed),
        keys(pages * kv_heads * s.page_rows * s.head_dim, seed, 1),
        values(pages * kv_heads * s.page_rows * s.head_dim, seed + 1, 1) {
    for (int64_t i = 0; i < pages; ++i) tables.push_back(static_cast<int32_t>(i));
    for (int64_t i = pages - 1; i > 0; --i) {
      std::swap(tables[static_cast<size_t>(i)],
                tables[static_cast<size_t>(bits_at(seed + 2, i) % static_cast<uint32_t>(i + 1))]);
    }
  }

  int64_t at(std::pair<int64_t, int> place, int kv_head) const {
    return ((place.first * kv_heads + kv_head) * page_rows + place.second) * head_dim;
  }

  int heads, kv_heads, head_dim, page_rows;
  uint64_t seed;
  Buffer<BFloat16> keys, values;
  std::vector<int32_t> tables;
};

// `each` rows of every sequence, the last of which sees `context` keys. shift: pages left out of
// the tables, so that other calls read others
inline RowColumns decode_rows(const Shape& s, int sequences, int each, int context, int64_t shift) {
  RowColumns c;
  const int pages = (context + s.page_rows - 1) / s.page_rows;
  for (int q = 0; q < sequences; ++q) {
    for (int r = 0; r < each; ++r) {
      c.position.push_back(context - each + r);
      c.slot.push_back(0);
      c.table.push_back(static_cast<int32_t>(shift + int64_t{q} * pages));
      c.first_key.push_back(0);
      c.dense_end.push_back(context - each + r + 1);
      c.extra_begin.push_back(0);
      c.extra_end.push_back(0);
      c.prompts.push_back(0);
    }
  }
  return c;
}

struct AttentionScratch {
  explicit AttentionScratch(int64_t n) : memory(n) {}

  // Sets the grid, and the parts if there are several splits.
  void prepare(AttentionArguments<BFloat16>& a) const {
    a.grid = attention_grid<BFloat16>(a.rows, a.kv.heads, a.kv.kv_heads);
    if (a.grid.splits == 1) return;
    const int64_t parts = int64_t{a.rows.rows} * a.kv.heads * a.grid.splits;
    if (parts * (a.kv.head_dim + 2) > memory.size()) throw std::runtime_error("too little scratch");
    a.parts.sums = memory.ptr();
    a.parts.tops = a.parts.sums + parts * a.kv.head_dim;
    a.parts.totals = a.parts.tops + parts;
  }
  static int64_t size_for(int64_t rows, int heads, int head_dim, int64_t keys) {
    return rows * heads * (keys / 32 + 1) * (head_dim + 2);
  }

  Buffer<float> memory;
};

// Queries of a row depend on its sequence and position only. Of four heads, one has random queries;
// the others look for one key: the row's last, its first, and any.
inline Rows queries_of(const KvNumbers& kv, const PlacedRows& rows) {
  const int d = kv.head_dim;
  const int64_t stride = int64_t{kv.heads + 2 * kv.kv_heads} * d;
  Rows all(static_cast<size_t>(stride * rows.view().rows), static_cast<BFloat16>(0.0f));
  for (int r = 0; r < rows.view().rows; ++r) {
    const std::vector<int> keys = rows.keys_of(r);
    const int64_t table = rows.columns().table[static_cast<size_t>(r)];
    const int64_t key = (table * 65536 + keys.back()) * kv.heads;
    for (int h = 0; h < kv.heads; ++h) {
      const int kind = h % 4;
      const size_t any = bits_at(kv.seed + 3, key + h) % keys.size();
      const int wanted = kind == 1 ? keys.back() : kind == 2 ? keys.front() : keys[any];
      const int64_t from = kv.at(rows.place_of(r, wanted), h / (kv.heads / kv.kv_heads));
      for (int i = 0; i < d; ++i) {
        const float x = kind == 0 ? number_at(kv.seed + 4, (key + h) * d + i)
                                  : 1.5f * number_at(kv.seed, from + i);
        all[static_cast<size_t>(r * stride + h * d + i)] = static_cast<BFloat16>(4 * x);
      }
    }
  }
  return all;
}

// What a head of a row attends to: [head_dim].
inline std::vector<double> attended(const KvNumbers& kv, const PlacedRows& rows, const Rows& qkv,
                                    int row, int head) {
  const int d = kv.head_dim, kv_head = head / (kv.heads / kv.kv_heads);
  const std::vector<int> keys = rows.keys_of(row);
  const BFloat16* const q = qkv.data() + (int64_t{row} * (kv.heads + 2 * kv.kv_heads) + head) * d;
  std::vector<double> scores, out(static_cast<size_t>(d));
  double top = -1e300, total = 0;
  for (const int key : keys) {
    const int64_t at = kv.at(rows.place_of(row, key), kv_head);
    double score = 0;
    for (int i = 0; i < d; ++i) {
      score += static_cast<double>(q[i]) * static_cast<double>(number_at(kv.seed, at + i));
    }
    scores.push_back(score / std::sqrt(static_cast<double>(d)));
    top = std::max(top, scores.back());
  }
  for (size_t k = 0; k < keys.size(); ++k) {
    const int64_t at = kv.at(rows.place_of(row, keys[k]), kv_head);
    const double weight = std::exp(scores[k] - top);
    total += weight;
    for (int i = 0; i < d; ++i) {
      out[static_cast<size_t>(i)] += weight * static_cast<double>(number_at(kv.seed + 1, at + i));
    }
  }
  for (double& x : out) x /= total;
  return out;
}

// Runs attention and compares some rows and heads. Returns the bits of all rows.
inline Rows check_attention(Report& report, const std::string& name, const KvNumbers& kv,
                            const AttentionScratch& scratch, const PlacedRows& rows) {
  const Rows qkv = queries_of(kv, rows);
  const Buffer<BFloat16> device_qkv(qkv);
  const int n = rows.view().rows, d = kv.head_dim;
  Buffer<BFloat16> out(int64_t{n} * kv.heads * d);
  AttentionArguments<BFloat16> a;
  a.out = out.ptr();
  a.qkv = device_qkv.ptr();
  a.q_stride = int64_t{kv.heads + 2 * kv.kv_heads} * d;
  a.rows = rows.view();
  a.kv = {kv.heads, kv.kv_heads, d, kv.keys.ptr(), kv.values.ptr()};
  a.scale = 1 / std::sqrt(static_cast<float>(d));
  scratch.prepare(a);
  attention<BFloat16>(stream, a);
  finish(name.c_str());
  Rows got = out.read();
  struct Sample {
    int row, head;
    std::vector<double> want;
  };
  std::vector<Sample> samples;
  std::vector<int> some = {0, n / 2, n - 1};
  some.erase(std::unique(some.begin(), some.end()), some.end());
  for (const int row : some) {
    for (int i = 0; i < 4; ++i) {  // one of each kind of queries, over all heads
      samples.push_back({row, (kv.heads / 4 * i / 4 * 4 + i) % kv.heads, {}});
    }
    samples.push_back({row, kv.heads - 1, {}});
  }
  on_all_cores(static_cast<int64_t>(samples.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Sample& s = samples[static_cast<size_t>(i)];
      s.want = attended(kv, rows, qkv, s.row, s.head);
    }
  });
  Difference off(kBFloat16);
  for (const Sample& s : samples) {
    for (int i = 0; i < d; ++i) {
      const int64_t at = (int64_t{s.row} * kv.heads + s.head) * d + i;
      off.add(static_cast<double>(got[static_cast<size_t>(at)]), s.want[static_cast<size_t>(i)]);
    }
  }
  report.check(name, off.value(), kMostOfAttention);
  report.same(name + ".all_written", std::none_of(got.begin(), got.end(), [](BFloat16 x) {
                return std::isnan(static_cast<float>(x));
              }));
  return got;
}

// A tree of two branches after `dense` keys: row r sees every second row up to itself.
inline std::pair<RowColumns, std::vector<int32_t>> tree_rows(int dense, int n) {
  RowColumns c;
  std::vector<int32_t> extra;
  for (int r = 0; r < n; ++r) {
    c.position.push_back(dense + r / 2);
    c.slot.push_back(0);
    c.table.push_back(0);
    c.first_key.push_back(0);
    c.dense_end.push_back(dense);
    c.extra_begin.push_back(static_cast<int32_t>(extra.size()));
    for (int other = r % 2; other <= r; other += 2) extra.push_back(dense + other);
    c.extra_end.push_back(static_cast<int32_t>(extra.size()));
    c.prompts.push_back(0);
  }
  return {std::move(c), std::move(extra)};
}

inline int64_t pages_for(const Shape& s) {
  const int64_t keys = *std::max_element(s.contexts.begin(), s.contexts.end());
  const int64_t sequences = *std::max_element(s.sequences.begin(), s.sequences.end());
  return sequences * ((keys + s.page_rows - 1) / s.page_rows);
}

inline void check_all_attention(Report& report, const Shape& s, const KvNumbers& kv,
                                const AttentionScratch& scratch) {
  const std::string of = "attention.kv_heads_" + std::to_string(kv.kv_heads);
  const int64_t width = int64_t{s.heads} * s.head_dim;
  for (const int context : s.contexts) {
    Rows alone;  // the last row of the first sequence
    bool same = true;
    for (const int sequences : s.sequences) {
      for (const int each : s.rows_each) {
        if (each > context) continue;
        const std::string name = of + ".context_" + std::to_string(context) + ".sequences_" +
                                 std::to_string(sequences) + ".rows_" + std::to_string(each);
        const PlacedRows rows(decode_rows(s, sequences, each, context, 0), kv.tables, {0},
                              s.page_rows);
        const Rows got = check_attention(report, name, kv, scratch, rows);
        const Rows row(got.begin() + (each - 1) * width, got.begin() + each * width);
        if (alone.empty()) alone = row;
        same = same && equal_bits(alone.data(), row.data(), width);
      }
    }
    report.same(of + ".context_" + std::to_string(context) + ".row_bits", same);
  }
  const int most = *std::max_element(s.contexts.begin(), s.contexts.end());
  const auto [columns, extra] = tree_rows(std::min(most / 2, 1500), 8);
  PlacedRows tree(columns, kv.tables, extra, s.page_rows);
  check_attention(report, of + ".tree", kv, scratch, tree);
  tree.view().window = 5;
  check_attention(report, of + ".tree_in_window", kv, scratch, tree);
}

// -- Rotation and storage
// -----------------------------------------------------------------------------

inline std::vector<float> frequencies(int head_dim) {
  std::vector<float> all;
  for (int i = 0; i < head_dim / 2; ++i) {
    all.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
  }
  return all;
}

// Queries in place, keys and values at the rows' slots, and nothing else.
inline void check_rope(Report& report, const Shape& s, int kv_heads, int n, uint64_t seed) {
  const std::string name =
      "rope.kv_heads_" + std::to_string(kv_heads) + ".rows_" + std::to_string(n);
  const int d = s.head_dim, half = d / 2, heads = s.heads + 2 * kv_heads;
  const int64_t pages = n + 3;
  RowColumns c = decode_rows(s, n, 1, 1, 0);
  for (int r = 0; r < n; ++r) {
    c.position[static_cast<size_t>(r)] =
        static_cast<int32_t>(bits_at(seed, r) % 32768u);  // far more than the table of pages
    c.slot[static_cast<size_t>(r)] = (r * 13 + 5) % (pages * s.page_rows);  // all distinct
  }
  const PlacedRows rows(c, {0}, {0}, s.page_rows);
  const Rows before = numbers<BFloat16>(int64_t{n} * heads * d, seed + 1, 2);
  const std::vector<float> inverse = frequencies(d);
  const Buffer<BFloat16> qkv(before);
  const Buffer<float> device_inverse(inverse);
  Buffer<BFloat16> keys(pages * kv_heads * s.page_rows * d), values(keys.size());
  const PagedHeads<BFloat16> kv{s.heads, kv_heads, d, keys.ptr(), values.ptr()};
  rope_and_store<BFloat16>(stream, qkv.ptr(), rows.view(), kv, {device_inverse.ptr(), 1.25f});
  finish("rope_and_store");
  const Rows rotated = qkv.read(), stored = keys.read(), stored_values = values.read();
  Difference off(kBFloat16);
  bool same = true;
  for (int r = 0; r < n; ++r) {
    const int64_t slot = c.slot[static_cast<size_t>(r)];
    const auto place = [&](int kv_head) {
      return (slot / s.page_rows * kv_heads + kv_head) * s.page_rows * d + slot % s.page_rows * d;
    };
    const size_t row = static_cast<size_t>(r) * static_cast<size_t>(heads * d);
    for (int h = 0; h < s.heads + kv_heads; ++h) {
      for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(c.position[static_cast<size_t>(r)]) *
                            inverse[static_cast<size_t>(i)];
        const double co = 1.25 * std::cos(static_cast<double>(angle));
        const double si = 1.25 * std::sin(static_cast<double>(angle));
        const size_t from = row + static_cast<size_t>(h * d + i);
        const auto x = static_cast<double>(before[from]);
        const auto y = static_cast<double>(before[from + static_cast<size_t>(half)]);
        const bool query = h < s.heads;
        const size_t at = query ? from : static_cast<size_t>(place(h - s.heads) + i);
        const Rows& got = query ? rotated : stored;
        off.add(static_cast<double>(got[at]), x * co - y * si);
        off.add(static_cast<double>(got[at + static_cast<size_t>(half)]), y * co + x * si);
      }
    }
    for (int h = 0; h < kv_heads; ++h) {
      const size_t from = row + static_cast<size_t>((s.heads + kv_heads + h) * d);
      same = same && equal_bits(&before[from], &stored_values[static_cast<size_t>(place(h))], d);
    }
  }
  report.check(name, off.value(), kMostOfSums);
  report.same(name + ".values", same);
  for (const Rows* pool : {&stored, &stored_values}) {
    const auto written =
        std::count_if(pool->begin(), pool->end(), [](BFloat16 x) { return x.bits != 0xffff; });
    report.same(name + ".other_slots_untouched", written == int64_t{n} * kv_heads * d);
  }
}

// -- Readout
// ------------------------------------------------------------------------------------------

// Each operation rounded: kept apart from additions, which compilers would fuse.
inline float times(float a, float b) { return a * b; }
inline float plus(float a, float b) { return a + b; }

// The contract of readout.h, written again for the host: exp of x <= 0.
inline float exact_exp(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = std::fma(clamped, 1.44269504088896341f, 12582912.0f);
  const float n = plus(shifted, -12582912.0f);
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float y = 1.9875691500e-4f;
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    y = std::fma(y, r, c);
  }
  y = plus(std::fma(times(y, r), r, r), 1.0f);
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  return x < -87.0f ? 0.0f : times(y, std::bit_cast<float>(power));
}

// engine/sampling/race.h: the exponential variable of a token.
inline float exact_exponential(const uint32_t (&key)[2], uint32_t v) {
  uint32_t x = v + key[0];
  x = (x ^ x >> 17) * 0xed5ad4bbu;
  x = ((x ^ x >> 11) + key[1]) * 0xac4c1b51u;
  x = (x ^ x >> 15) * 0x31848babu;
  const uint32_t word = x ^ x >> 14;
  const auto unit = [](uint32_t w) { return times(plus(static_cast<float>(w), 0.5f), 0x1p-32f); };
  float f = 0, e = 0;
  if (word < 0x40000000u) {
    f = -unit(word);
  } else {
    const uint32_t above = std::bit_cast<uint32_t>(unit(~word)) - 0x3f3504f3u;
    e = static_cast<float>(static_cast<int32_t>(above) >> 23);
    f = plus(std::bit_cast<float>((above & 0x007fffffu) + 0x3f3504f3u), -1.0f);
  }
  const float z = times(f, f);
  float y = 7.0376836292e-2f;
  for (const float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                        -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f}) {
    y = plus(times(y, f), c);
  }
  y = times(times(y, f), z);
  y = plus(y, times(e, -2.12194440e-4f));
  y = plus(y, -times(0.5f, z));
  return -plus(plus(f, y), times(e, 0.693359375f));
}

// Sum of weights in sampling's order: sixteen lanes of each 1,024.
inline double exact_sum(const std::vector<float>& weights) {
  double total = 0;
  for (size_t block = 0; block < weights.size(); block += kSumBlock) {
    double lanes[kSumLanes] = {}, sum = 0;
    const size_t end = std::min(weights.size(), block + kSumBlock);
    for (size_t i = block; i < end; ++i) {
      lanes[(i - block) % kSumLanes] += static_cast<double>(weights[i]);
    }
    for (const double lane : lanes) sum += lane;
    total += sum;
  }
  return total;
}

inline RowAnswer exact_answer(const float* x, const RowQuestion& q) {
  RowAnswer a;
  std::vector<int32_t> order;
  a.valid = 1;
  for (int32_t v = 0; v < q.vocab; ++v) {
    if (!(x[v] < std::numeric_limits<float>::infinity())) a.valid = 0;
    order.push_back(v);
  }
  if (a.valid == 0) return a;
  const auto first = [&](int32_t v, int32_t w) { return x[v] != x[w] ? x[v] > x[w] : v < w; };
  std::partial_sort(order.begin(), order.begin() + std::min(kAnsweredTop, q.vocab), order.end(),
                    first);
  a.argmax = order[0];
  a.max = x[a.argmax];
  for (int i = 0; i < q.top; ++i) a.top[i] = order[static_cast<size_t>(i)];
  for (int i = 0; i < q.top; ++i) a.top_logit[i] = x[a.top[i]];
  if (q.scored >= 0) a.scored = x[q.scored];
  const auto weights = [&](float scale) {
    std::vector<float> w;
    for (int32_t v = 0; v < q.vocab; ++v) w.push_back(exact_exp(times(plus(x[v], -a.max), scale)));
    return w;
  };
  if (q.sums != 0) a.log_sum = exact_sum(weights(1));
  if (q.inverse_temperature == 0) return a;
  const std::vector<float> w = weights(q.inverse_temperature);
  a.total = exact_sum(w);
  float best = 0;
  for (int32_t v = 0; v < q.vocab; ++v) {
    const float score = times(w[static_cast<size_t>(v)], 0x1p64f) /
                        exact_exponential(q.key, static_cast<uint32_t>(v));
    if (score > best) {
      best = score;
      a.drawn = v;
      a.drawn_logit = x[v];
    }
  }
  return a;
}

inline bool same_answer(const RowAnswer& a, const RowAnswer& b, const RowQuestion& q) {
  if (a.valid != b.valid) return false;
  if (a.valid == 0) return true;
  bool same = a.max == b.max && a.argmax == b.argmax;
  for (int i = 0; i < q.top; ++i) {
    same = same && a.top[i] == b.top[i] && a.top_logit[i] == b.top_logit[i];
  }
  if (q.scored >= 0) same = same && a.scored == b.scored;
  if (q.sums != 0) same = same && a.log_sum == b.log_sum;
  if (q.inverse_temperature == 0) return same;
  return same && a.total == b.total && a.drawn == b.drawn && a.drawn_logit == b.drawn_logit;
}

// Logits, every second row with many ties. One row of eight has a NaN, one an infinity.
inline std::vector<float> random_logits(int64_t rows, int64_t vocab, uint64_t seed) {
  std::vector<float> x = numbers<float>(rows * vocab, seed, 12);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * vocab; r % 2 == 0 && i < (r + 1) * vocab; ++i) {
      x[static_cast<size_t>(i)] += 0.09f * number_at(seed + 9, i);
    }
    const auto at = static_cast<size_t>(r * vocab + bits_at(seed, -r - 1) % vocab);
    if (r % 8 == 6) x[at] = std::nanf("");
    if (r % 8 == 7) x[at] = std::numeric_limits<float>::infinity();
  }
  return x;
}

inline std::vector<RowQuestion> questions(int64_t rows, int64_t vocab, uint64_t seed) {
  std::vector<RowQuestion> all;
  for (int64_t r = 0; r < rows; ++r) {
    RowQuestion q;
    q.vocab = static_cast<int32_t>(vocab - r % 3);
    if (r % 2 == 1) q.scored = static_cast<int32_t>(bits_at(seed, r) % q.vocab);
    q.top = r % 8 == 2 ? kAnsweredTop : static_cast<int32_t>(r % 4);
    q.sums = r % 3 == 1 ? 1 : 0;
    q.inverse_temperature = r % 4 == 0 ? 0.0f : 0.5f * static_cast<float>(r % 4);
    q.key[0] = bits_at(seed + 1, r);
    q.key[1] = bits_at(seed + 2, r);
    all.push_back(q);
  }
  return all;
}

inline void check_readout(Report& report, const std::string& name, int64_t vocab, uint64_t seed) {
  constexpr int64_t kRows = 16;
  const std::vector<float> logits = random_logits(kRows, vocab, seed);
  const std::vector<RowQuestion> asked = questions(kRows, vocab, seed);
  const Buffer<float> x(logits);
  const Buffer<RowQuestion> device_asked(asked);
  const Buffer<RowAnswer> answers(kRows);
  answer_rows(stream, x.ptr(), vocab, device_asked.ptr(), answers.ptr(), kRows);
  finish("answer_rows");
  const std::vector<RowAnswer> got = answers.read();
  std::vector<int> same(kRows);
  on_all_cores(kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto i = static_cast<size_t>(r);
      same[i] = same_answer(got[i], exact_answer(logits.data() + r * vocab, asked[i]), asked[i]);
    }
  });
  for (int64_t r = 0; r < kRows; ++r) {
    if (same[static_cast<size_t>(r)] == 0)
      report.fail(name + ".row_" + std::to_string(r), "differs");
  }
  report.same(name + ".bits", std::count(same.begin(), same.end(), 0) == 0);

  std::vector<ChosenToken> chosen;
  std::vector<int32_t> token, want;
  for (int32_t r = 0; r < 300; ++r) {
    const auto answer = static_cast<int32_t>(bits_at(seed + 5, r) % (kRows + 1)) - 1;
    int32_t which = static_cast<int32_t>(bits_at(seed + 6, r) % 3) - 2;
    token.push_back(1000000 + r);
    if (answer < 0) {
      want.push_back(token.back());
    } else {
      const RowAnswer& a = got[static_cast<size_t>(answer)];
      if (which == 0 && asked[static_cast<size_t>(answer)].top == 0) which = ChosenToken::kArgmax;
      want.push_back(a.valid == 0                    ? -1
                     : which == ChosenToken::kArgmax ? a.argmax
                     : which == ChosenToken::kDrawn  ? a.drawn
                                                     : a.top[which]);
    }
    chosen.push_back({answer, which});
  }
  const Buffer<ChosenToken> device_chosen(chosen);
  const Buffer<int32_t> from(token), to(static_cast<int64_t>(token.size()));
  choose(stream, to.ptr(), from.ptr(), device_chosen.ptr(), from.size(), answers.ptr());
  finish("choose");
  report.same(name + ".choose", to.read() == want);
}

// -- Element-wise kernels
// -----------------------------------------------------------------------------

inline void check_elementwise(Report& report, const Shape& s, int n, uint64_t seed) {
  const std::string of = ".rows_" + std::to_string(n);
  const int64_t vocab = s.vocab, width = s.hidden;
  std::vector<int32_t> token, position;
  for (int r = 0; r < n; ++r) {
    token.push_back(r % 5 == 3 ? -1 : static_cast<int32_t>(bits_at(seed, r) % vocab));
    position.push_back(static_cast<int32_t>(bits_at(seed, 1000 + r) % vocab));
  }
  const Buffer<BFloat16> table(vocab * width, seed, 1);
  const Buffer<int32_t> tokens(token), positions(position);
  const std::vector<float> before = numbers<float>(n * width, seed + 1);
  const Buffer<float> x(before);
  embed<BFloat16>(stream, x.ptr(), table.ptr(), tokens.ptr(), n, width);
  scale_rows<float>(stream, x.ptr(), tokens.ptr(), 1.5, n, width);
  add_positions<BFloat16>(stream, x.ptr(), table.ptr(), tokens.ptr(), positions.ptr(), n, width);
  finish("embed");
  const std::vector<float> embedded = x.read();
  Difference off(kExact);
  for (int64_t i = 0; i < n * width; ++i) {
    const auto r = static_cast<size_t>(i / width);
    const auto of_table = [&](int64_t row) {
      return static_cast<double>(number_at(seed, row * width + i % width));
    };
    off.add(static_cast<double>(embedded[static_cast<size_t>(i)]),
            token[r] < 0 ? static_cast<double>(before[static_cast<size_t>(i)])
                         : 1.5 * of_table(token[r]) + of_table(position[r]));
  }
  report.check("embed" + of, off.value(), 0);

  // Two norms, of which one adds, and one of heads in place.
  const std::vector<float> weight = norm_weights(width, seed + 2);
  const Buffer<float> norm_weight(weight);
  const NormArguments<float> of_norm{false, norm_weight.ptr(), nullptr, kEps};
  const Buffer<BFloat16> y(n * width);
  norm<BFloat16>(stream, y.ptr(), x.ptr(), of_norm, n, width);
  finish("norm");
  const Rows normed = y.read();
  add_norm<BFloat16>(stream, x.ptr(), y.ptr(), of_norm, n, width);
  finish("add_norm");
  const std::vector<float> added = x.read();
  const std::vector<double> want = exact_norm(embedded, weight, kEps, width);
  std::vector<float> narrow;
  for (const BFloat16 v : normed) narrow.push_back(static_cast<float>(v));
  const std::vector<double> more = exact_norm(narrow, weight, kEps, width);
  Difference off_norm(kBFloat16), off_added(kExact);
  for (size_t i = 0; i < want.size(); ++i) {
    off_norm.add(static_cast<double>(narrow[i]), want[i]);
    off_added.add(static_cast<double>(added[i]), static_cast<double>(embedded[i]) + more[i]);
  }
  report.check("norm" + of, off_norm.value(), kMostOfSums);
  report.check("add_norm" + of, off_added.value(), kMostOfSums);
  // Heads in place, but for the last one of each row.
  const int64_t d = s.head_dim, row = s.heads * d;
  const std::vector<float> all_heads = numbers<float>(n * row, seed + 4);
  const Buffer<BFloat16> heads(numbers<BFloat16>(n * row, seed + 4));
  norm_heads<BFloat16>(stream, heads.ptr(), row, s.heads - 1, s.head_dim, of_norm, n);
  finish("norm_heads");
  const std::vector<double> got_heads = as_doubles(heads.read());
  const std::vector<double> want_heads = exact_norm(all_heads, weight, kEps, d);
  Difference off_heads(kBFloat16);
  for (int64_t i = 0; i < n * row; ++i) {
    const auto at = static_cast<size_t>(i);
    off_heads.add(got_heads[at],
                  i % row < row - d ? want_heads[at] : static_cast<double>(all_heads[at]));
  }
  report.check("norm_heads" + of, off_heads.value(), kMostOfSums);

  const Rows gates = numbers<BFloat16>(n * 2 * s.inner, seed + 3, 4);
  const Buffer<BFloat16> gate_up(gates), gated(n * s.inner);
  gate<BFloat16>(stream, gated.ptr(), gate_up.ptr(), Activation::kSilu, n, s.inner);
  activate<BFloat16>(stream, gate_up.ptr(), Activation::kGelu, gate_up.size());
  finish("gate");
  const std::vector<double> got = as_doubles(gated.read()), active = as_doubles(gate_up.read());
  Difference off_gate(kBFloat16), off_active(kBFloat16);
  for (int64_t i = 0; i < n * s.inner; ++i) {
    const auto at = static_cast<size_t>(i / s.inner * 2 * s.inner + i % s.inner);
    off_gate.add(got[static_cast<size_t>(i)],
                 silu(static_cast<double>(gates[at])) *
                     static_cast<double>(gates[at + static_cast<size_t>(s.inner)]));
  }
  for (size_t i = 0; i < gates.size(); ++i) {
    const auto g = static_cast<double>(gates[i]);
    off_active.add(active[i], 0.5 * g * (1 + std::erf(g * std::sqrt(0.5))));
  }
  report.check("gate" + of, off_gate.value(), kMostOfSums);
  report.check("activate" + of, off_active.value(), kMostOfSums);
}

// -- All
// ------------------------------------------------------------------------------------------------

// wants(name): whether this part is asked for.
template <class Wants>
void check_all(Report& report, const Shape& s, uint64_t seed, const Wants& wants) {
  for (const int n : {1, 16}) {
    if (wants("elementwise")) check_elementwise(report, s, n, seed + 100);
  }
  for (const int kv_heads : s.kv_heads) {
    for (const int n : {1, 8, 32}) {
      if (wants("rope")) check_rope(report, s, kv_heads, n, seed + 200);
    }
  }
  if (wants("readout")) {
    check_readout(report, "readout.vocab_" + std::to_string(s.vocab), s.vocab, seed + 300);
    check_readout(report, "readout.vocab_" + std::to_string(s.long_vocab), s.long_vocab,
                  seed + 310);
  }
  for (const int kv_heads : s.kv_heads) {
    for (const Matrix& m : matrices(s, kv_heads)) {
      if (wants("product." + m.name)) check_matrix(report, s, m, seed + 400);
      if (m.name != "gate_up" && m.name != "down") continue;
      for (const QuantType type : {QuantType::kQ80, QuantType::kQ4K}) {
        const std::string name = std::string("blocks.") + name_of(type) + "." + m.name;
        if (wants(name)) check_blocks(report, s, m, type, seed + 500);
      }
    }
  }
  if (!wants("attention")) return;
  const int most = *std::max_element(s.contexts.begin(), s.contexts.end());
  const int64_t rows = int64_t{*std::max_element(s.sequences.begin(), s.sequences.end())} *
                       *std::max_element(s.rows_each.begin(), s.rows_each.end());
  const AttentionScratch scratch(AttentionScratch::size_for(rows, s.heads, s.head_dim, most));
  for (const int kv_heads : s.kv_heads) {
    const KvNumbers kv(s, kv_heads, pages_for(s), seed + 600);
    check_all_attention(report, s, kv, scratch);
  }
}

}  // namespace tandem::cuda::program
