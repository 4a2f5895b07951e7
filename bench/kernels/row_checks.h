// Checks of the kernels between products: rotation, embedding, norms, activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernels/attention_checks.h"
#include "bench/kernels/exact.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/elementwise.h"

namespace tandem::cuda::program {

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

  // A norm, a norm that adds to its output, and a norm of heads in place.
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

}  // namespace tandem::cuda::program
