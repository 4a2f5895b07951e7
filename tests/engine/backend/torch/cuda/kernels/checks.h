// Compares every kernel on the emulated device with the CPU's. Checks return a description of the
// first difference, or "".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cpu/elementwise.h"
#include "engine/backend/torch/cuda/kernels/attention.h"
#include "engine/backend/torch/cuda/kernels/elementwise.h"
#include "tests/engine/backend/torch/cpu/attention_case.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

// Relative to 1 + |x|, for one or two roundings.
template <class T>
double tolerance() {
  if (std::is_same_v<T, double>) return 1e-12;
  if (std::is_same_v<T, float>) return 1e-5;
  return std::is_same_v<T, Half> ? 0.0015 : 0.01;
}

// Random numbers that are exact in T.
template <class T>
std::vector<double> random_as(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> all;
  for (int64_t i = 0; i < n; ++i) {
    all.push_back(static_cast<double>(static_cast<T>(normal(random))));
  }
  return all;
}

template <class R>
std::vector<R> in(const std::vector<double>& numbers) {
  return std::vector<R>(numbers.begin(), numbers.end());
}

template <class R>
std::string compare(const std::string& what, const std::vector<double>& got,
                    const std::vector<R>& want, double tolerance) {
  if (got.size() != want.size()) return absl::StrCat(what, ": ", got.size(), " numbers");
  for (size_t i = 0; i < want.size(); ++i) {
    const auto w = static_cast<double>(want[i]);
    if (!(std::abs(got[i] - w) <= tolerance * (1 + std::abs(w)))) {
      return absl::StrCat(what, "[", i, "]: ", got[i], " where the CPU has ", w);
    }
  }
  return "";
}

// The first nonempty result.
inline std::string first_of(std::initializer_list<std::string> checks) {
  for (const std::string& c : checks) {
    if (!c.empty()) return c;
  }
  return "";
}

// Embedding, scaling, positions and row copies; some rows have no token.
template <class T>
std::string check_inputs(int64_t rows, int64_t width, uint64_t seed) {
  using R = Residual<T>;
  constexpr int kVocab = 7;
  std::vector<int32_t> tokens, positions;
  for (int64_t r = 0; r < rows; ++r) {
    tokens.push_back(r % 3 == 1 ? -1 : static_cast<int32_t>((r * 5 + 2) % kVocab));
    positions.push_back(static_cast<int32_t>(r * 3 % kVocab));
  }
  const std::vector<double> table = random_as<T>(kVocab * width, seed);
  const std::vector<double> before = random_as<R>(rows * width, seed + 1);
  const DeviceArray<R> x("x", before);
  const DeviceArray<T> on_device("table", table);
  const DeviceArray<int32_t> token("token", tokens);
  const DeviceArray<int32_t> position("position", positions);
  embed<T>({}, x, on_device, token, rows, width);
  scale_rows<R>({}, x, token, 1.5, rows, width);
  add_positions<T>({}, x, on_device, token, position, rows, width);

  std::vector<R> want = in<R>(before);
  const std::vector<R> host_table = in<R>(table);
  cpu::embed<R, R>(want.data(), host_table.data(), tokens.data(), rows, width);
  cpu::scale_rows<R>(want.data(), tokens.data(), 1.5, rows, width);
  cpu::add_positions<R, R>(want.data(), host_table.data(), tokens.data(), positions.data(), rows,
                           width);
  const std::string inputs = compare("inputs", x.numbers(), want, 0);
  if (sizeof(R) * static_cast<size_t>(width) % 4 != 0 || !inputs.empty()) return inputs;

  // Every second row to another row's index, and back without an index.
  std::vector<int64_t> to, from;
  for (int64_t r = 0; r + 1 < rows; r += 2) {
    from.push_back(r);
    to.push_back(r + 1);
    std::copy_n(want.begin() + r * width, width, want.begin() + (r + 1) * width);
  }
  const auto n = static_cast<int64_t>(to.size());
  const int64_t words = width * static_cast<int64_t>(sizeof(R)) / 4;
  const DeviceArray<int64_t> to_index("to", to);
  const DeviceArray<int64_t> from_index("from", from);
  const DeviceArray<R> some("some", n * width);
  copy_rows({}, some.template as<int32_t>(), nullptr, x.template as<const int32_t>(), from_index, n,
            words);
  copy_rows({}, x.template as<int32_t>(), to_index, some.template as<const int32_t>(), nullptr, n,
            words);
  return compare("copies", x.numbers(), want, 0);
}

// norm, add_norm and norm_heads.
template <class T>
std::string check_norms(NormKind kind, int64_t rows, int64_t width, uint64_t seed) {
  using R = Residual<T>;
  const std::vector<double> weight = random_as<R>(width, seed);
  const std::vector<double> bias = random_as<R>(width, seed + 1);
  std::vector<double> numbers = random_as<T>(rows * width, seed + 2);
  // Far from zero, so that the mean matters.
  for (double& x : numbers) x = static_cast<double>(static_cast<T>(x + 3));
  const std::vector<double> residual = random_as<R>(rows * width, seed + 3);
  const DeviceArray<R> w("weight", weight);
  const DeviceArray<R> b("bias", bias);
  const bool layer = kind == NormKind::kLayer;
  const NormArguments<R> arguments{layer, w, b, static_cast<R>(1e-5)};
  const std::vector<R> host_weight = in<R>(weight);
  const std::vector<R> host_bias = in<R>(bias);
  const cpu::Norm<R> host{kind, host_weight.data(), host_bias.data(), 1e-5};
  const std::vector<R> host_numbers = in<R>(numbers);

  const DeviceArray<R> x("x", numbers);
  const DeviceArray<T> out("out", rows * width);
  norm<T>({}, out, x, arguments, rows, width);
  std::vector<R> want(numbers.size());
  cpu::norm<R, R>(want.data(), host_numbers.data(), host, rows, width);
  const std::string plain = compare("norm", out.numbers(), want, tolerance<T>());

  const DeviceArray<R> sum("sum", residual);
  const DeviceArray<T> y("y", numbers);
  add_norm<T>({}, sum, y, arguments, rows, width);
  std::vector<R> want_sum = in<R>(residual);
  cpu::add_norm<R, R>(want_sum.data(), host_numbers.data(), host, rows, width);
  const std::string added = compare("add_norm", sum.numbers(), want_sum, tolerance<R>());

  // The row as one head among others, which must not change.
  constexpr int kAround = 3;
  const int64_t stride = width + 2 * kAround;
  std::vector<double> wide = random_as<T>(rows * stride, seed + 4);
  std::vector<R> want_heads = in<R>(wide);
  const DeviceArray<T> heads("heads", wide);
  norm_heads<T>({}, heads.ptr() + kAround, stride, 1, static_cast<int>(width), arguments, rows);
  cpu::norm_heads<R, R>(want_heads.data() + kAround, stride, 1, static_cast<int>(width), host,
                        rows);
  return first_of(
      {plain, added, compare("norm_heads", heads.numbers(), want_heads, tolerance<T>())});
}

// gate and activate.
template <class T>
std::string check_activations(Activation kind, int64_t rows, int64_t width, uint64_t seed) {
  using R = Residual<T>;
  const std::vector<double> both = random_as<T>(rows * 2 * width, seed);
  const DeviceArray<T> gate_up("gate_up", both);
  const DeviceArray<T> out("out", rows * width);
  gate<T>({}, out, gate_up, kind, rows, width);
  activate<T>({}, gate_up, kind, rows * 2 * width);
  std::vector<R> want(static_cast<size_t>(rows * width));
  std::vector<R> want_x = in<R>(both);
  cpu::for_activation(kind, [&]<Activation activation>() {
    cpu::gate<activation, R, R>(want.data(), want_x.data(), rows, width);
    cpu::activate<activation, R, R>(want_x.data(), rows * 2 * width);
  });
  return first_of({compare("gate", out.numbers(), want, tolerance<T>()),
                   compare("activate", gate_up.numbers(), want_x, tolerance<T>())});
}

// Rows at random slots of shuffled pages. rotate: otherwise positions are unused.
template <class T>
std::string check_rope(const AttentionShape& s, int rows, bool rotate, uint64_t seed) {
  using R = Residual<T>;
  constexpr int kPositions = 400;
  std::mt19937_64 random(seed);
  const int d = s.head_dim;
  const int pages = rows / s.page_rows + 2;
  std::vector<int64_t> slots(static_cast<size_t>(pages * s.page_rows));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  std::shuffle(slots.begin(), slots.end(), random);
  std::vector<int32_t> positions;
  for (int r = 0; r < rows; ++r) positions.push_back(static_cast<int32_t>(random() % kPositions));
  RowView view;
  view.rows = rows;
  view.page_rows = s.page_rows;
  view.position = positions.data();
  view.slot = slots.data();

  std::vector<float> frequencies;
  for (int i = 0; i < d / 2; ++i) {
    frequencies.push_back(std::pow(10000.f, -2.f * static_cast<float>(i) / static_cast<float>(d)));
  }
  std::vector<R> cosine, sine;
  for (int p = 0; p < kPositions; ++p) {
    for (const float f : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(p) * f);
      cosine.push_back(static_cast<R>(1.25 * std::cos(angle)));
      sine.push_back(static_cast<R>(1.25 * std::sin(angle)));
    }
  }

  const int64_t width = int64_t{s.heads + 2 * s.kv_heads} * d;
  const std::vector<double> numbers = random_as<T>(rows * width, seed + 1);
  const DeviceArray<T> qkv("qkv", numbers);
  const int64_t size = int64_t{pages} * s.kv_heads * s.page_rows * d;
  const DeviceArray<T> keys("keys", size);
  const DeviceArray<T> values("values", size);
  const DeviceArray<float> on_device("frequencies", frequencies);
  rope_and_store<T>({}, qkv, view, {s.heads, s.kv_heads, d, keys, values},
                    {rotate ? Ptr<const float>(on_device) : Ptr<const float>(nullptr), R(1.25)});

  std::vector<R> want = in<R>(numbers);
  std::vector<R> want_keys(static_cast<size_t>(size)), want_values(static_cast<size_t>(size));
  const cpu::PagedKv<R> kv{s.kv_heads, d, s.page_rows, want_keys.data(), want_values.data()};
  cpu::rope_and_store<R, R, R>(want.data(), s.heads, view, kv, rotate ? cosine.data() : nullptr,
                               sine.data());
  std::vector<double> got, expected;
  for (int r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < int64_t{s.heads} * d; ++i) {
      got.push_back(static_cast<double>(qkv[r * width + i]));
      expected.push_back(static_cast<double>(want[static_cast<size_t>(r * width + i)]));
    }
    const int64_t page = slots[static_cast<size_t>(r)] / s.page_rows;
    const int64_t slot = slots[static_cast<size_t>(r)] % s.page_rows;
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int i = 0; i < d; ++i) {
        const int64_t at = ((page * s.kv_heads + h) * s.page_rows + slot) * d + i;
        if (!keys.is_written(at) || !values.is_written(at)) return "a slot was not written";
        got.push_back(static_cast<double>(keys[at]));
        got.push_back(static_cast<double>(values[at]));
        expected.push_back(static_cast<double>(kv.key(page, h, slot)[i * s.page_rows]));
        expected.push_back(static_cast<double>(kv.value(page, h, slot)[i]));
      }
    }
  }
  int64_t written = 0;
  for (int64_t i = 0; i < size; ++i) written += keys.is_written(i) ? 1 : 0;
  if (written != int64_t{rows} * s.kv_heads * d) return "slots without a row were written";
  return compare("rope", got, expected, tolerance<T>());
}

// One attention launch, with memory for partial results.
template <class T>
void attend(Ptr<T> out, Ptr<const T> qkv, int64_t q_stride, const RowView& rows,
            const PagedHeads<const T>& kv, double scale,
            const ScoresByDistance<Residual<T>>& bias = {}, int64_t most_bytes = kMostPartBytes) {
  using A = Residual<T>;
  AttentionArguments<T> a;
  a.out = out;
  a.qkv = qkv;
  a.q_stride = q_stride;
  a.rows = rows;
  a.kv = kv;
  a.scale = static_cast<A>(scale);
  a.bias = bias;
  a.grid = attention_grid<T>(rows, {kv.heads, kv.kv_heads, kv.head_dim}, most_bytes);
  const int64_t parts = int64_t{a.grid.slice_rows} * kv.heads * a.grid.splits;
  const DeviceArray<A> sums("sums", parts * kv.head_dim);
  const DeviceArray<A> tops("tops", parts);
  const DeviceArray<A> totals("totals", parts);
  a.parts = {sums, tops, totals};
  attention<T>({}, a);
}

// Per-layer settings beyond the rows' plan.
struct LayerView {
  int window = 0;   // RowView::window
  int prompts = 0;  // in two of three rows
  int64_t most_bytes = kMostPartBytes;
};

// Attention of a random case. Only pages of sequences are initialized.
template <class T>
std::string check_attention(AttentionCase c, const LayerView& layer = {}) {
  using R = Residual<T>;
  const AttentionShape& s = c.shape;
  const auto round_all = [](std::vector<double>& numbers) {
    for (double& x : numbers) x = static_cast<double>(static_cast<T>(x));
  };
  round_all(c.q);
  for (size_t i = 0; i < c.k.size(); ++i) {
    round_all(c.k[i]);
    round_all(c.v[i]);
  }
  if (layer.prompts > 0) {
    // The last rows of a sequence, used as an adapter's prompts for earlier rows.
    std::vector<int32_t> extra;
    std::vector<int> added(c.cache_rows.size());
    for (const int q : c.sequence) ++added[static_cast<size_t>(q)];
    for (size_t r = 0, row = 0; r < c.columns.prompts.size(); ++r, ++row) {
      const auto q = static_cast<size_t>(c.sequence[r]);
      if (r > 0 && c.sequence[r - 1] != c.sequence[r]) row = 0;
      const int first = c.cache_rows[q] - layer.prompts;
      const bool before = c.cache_rows[q] - added[q] + static_cast<int>(row) < first;
      const auto begin = c.extra.begin() + c.columns.extra_begin[r];
      const auto end = c.extra.begin() + c.columns.extra_end[r];
      c.columns.extra_begin[r] = static_cast<int32_t>(extra.size());
      extra.insert(extra.end(), begin, end);
      if (before && r % 3 != 0) {
        c.columns.prompts[r] = layer.prompts;
        for (int p = 0; p < layer.prompts; ++p) extra.push_back(first + p);
      }
      c.columns.extra_end[r] = static_cast<int32_t>(extra.size());
    }
    c.extra = extra;
  }
  RowView view = c.view();
  view.prompts = c.columns.prompts.data();
  view.most_keys = c.columns.most_keys();
  view.together = RowColumns::together(c.columns.table);
  view.window = layer.window;

  const int64_t q_width = int64_t{s.heads} * s.head_dim;
  const int64_t width = q_width + int64_t{2} * s.kv_heads * s.head_dim;
  const DeviceArray<T> qkv("qkv", c.rows() * width);
  for (int64_t i = 0; i < c.rows() * q_width; ++i) {
    qkv.set(i / q_width * width + i % q_width, static_cast<T>(c.q[static_cast<size_t>(i)]));
  }
  const int64_t size = int64_t{c.page_count} * s.kv_heads * s.page_rows * s.head_dim;
  const DeviceArray<T> keys("keys", size);
  const DeviceArray<T> values("values", size);
  for (size_t q = 0; q < c.cache_rows.size(); ++q) {
    for (int row = 0; row < c.cache_rows[q]; ++row) {
      const int64_t page = c.page_of[q][static_cast<size_t>(row / s.page_rows)];
      for (int h = 0; h < s.kv_heads; ++h) {
        const int64_t to = ((page * s.kv_heads + h) * s.page_rows + row % s.page_rows) * s.head_dim;
        const auto from = static_cast<size_t>((row * s.kv_heads + h) * s.head_dim);
        for (int i = 0; i < s.head_dim; ++i) {
          keys.set(to + i, static_cast<T>(c.k[q][from + static_cast<size_t>(i)]));
          values.set(to + i, static_cast<T>(c.v[q][from + static_cast<size_t>(i)]));
        }
      }
    }
  }
  const DeviceArray<T> out("out", c.rows() * q_width);
  const DeviceArray<R> by_distance("by_distance", c.bias);
  ScoresByDistance<R> bias;
  const std::vector<R> table = in<R>(c.bias);
  cpu::DistanceBias<R> host_bias;
  if (s.bias) {
    bias = {by_distance, AttentionCase::kBefore, AttentionCase::kAfter};
    host_bias = {table.data(), AttentionCase::kBefore, AttentionCase::kAfter};
  }
  attend<T>(out, qkv, width, view, {s.heads, s.kv_heads, s.head_dim, keys, values}, c.scale(), bias,
            layer.most_bytes);

  const auto pages = c.store<R>();
  const std::vector<R> queries = in<R>(c.q);
  std::vector<R> want(queries.size());
  cpu::attention<R, R>({queries.data(), q_width, want.data(), s.heads}, view, pages.kv, c.scale(),
                       host_bias);
  return compare(absl::StrCat("heads ", s.heads, "/", s.kv_heads, " x ", s.head_dim, ", pages of ",
                              s.page_rows, ", windows ", s.window, " and ", layer.window),
                 out.numbers(), want, tolerance<T>());
}

}  // namespace tandem::cuda
