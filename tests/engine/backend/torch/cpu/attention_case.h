// Random attention inputs: sequences with past and new rows (chains, trees), in shuffled pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "engine/backend/torch/cpu/attention.h"
#include "engine/backend/torch/row_view.h"

namespace tandem {

struct AttentionShape {
  int heads = 6;
  int kv_heads = 2;
  int head_dim = 64;
  int page_rows = 16;
  int window = 0;  // 0: none
  bool tree = true;
  bool bias = false;
  bool cross = false;  // cross-attention: rows see all of another cache
};

struct AttentionCase {
  AttentionShape shape;
  std::vector<int> sequence;              // [rows]
  std::vector<std::vector<int>> context;  // [rows] visible cache rows, in order
  std::vector<int> first_number;          // [rows] number of the first visible key
  std::vector<int> cache_rows;            // [sequences]
  std::vector<std::vector<double>> k, v;  // [sequences][cache_rows, kv_heads, head_dim]
  std::vector<double> q;                  // [rows, heads * head_dim]
  std::vector<double> bias;               // [heads, kBefore + 1 + kAfter]
  std::vector<std::vector<int>> page_of;  // [sequences][page index]
  int page_count = 0;
  RowColumns columns;
  std::vector<int32_t> extra, pages;

  static constexpr int kBefore = 40, kAfter = 3;

  int rows() const { return columns.rows(); }

  // Sequences with `past` old rows and `added` new ones each.
  AttentionCase(const AttentionShape& s, const std::vector<std::pair<int, int>>& past_added,
                uint64_t seed)
      : shape(s) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (const auto& [past, added] : past_added) add_sequence(past, added, random);
    lay_out(random);
    const auto fill = [&](std::vector<double>& x, int64_t n) {
      for (int64_t i = 0; i < n; ++i) x.push_back(normal(random));
    };
    for (const int n : cache_rows) {
      fill(k.emplace_back(), int64_t{n} * s.kv_heads * s.head_dim);
      fill(v.emplace_back(), int64_t{n} * s.kv_heads * s.head_dim);
    }
    fill(q, int64_t{rows()} * s.heads * s.head_dim);
    if (s.bias) fill(bias, int64_t{s.heads} * (kBefore + 1 + kAfter));
  }

  // Assigns new pages.
  void lay_out(std::mt19937_64& random) {
    pages.clear();
    page_of.clear();
    columns.table.clear();
    std::vector<int> order;
    for (const int n : cache_rows) {
      page_of.emplace_back((n + shape.page_rows - 1) / shape.page_rows);
      for (size_t i = 0; i < page_of.back().size(); ++i)
        order.push_back(static_cast<int>(order.size()));
    }
    page_count = static_cast<int>(order.size());
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int> table;
    for (auto& of : page_of) {
      table.push_back(static_cast<int>(pages.size()));
      for (int& p : of) {
        p = order.back();
        order.pop_back();
        pages.push_back(p);
      }
    }
    for (const int s : sequence) columns.table.push_back(table[static_cast<size_t>(s)]);
  }

  RowView view() const { return view_of(columns); }
  RowView view_of(const RowColumns& c) const {
    RowView v;
    v.rows = c.rows();
    v.page_rows = shape.page_rows;
    v.position = c.position.data();
    v.slot = c.slot.data();
    v.table = c.table.data();
    v.first_key = c.first_key.data();
    v.dense_end = c.dense_end.data();
    v.extra_begin = c.extra_begin.data();
    v.extra_end = c.extra_end.data();
    v.extra = extra.data();
    v.pages = pages.data();
    return v;
  }

  // Keys and values in pages; unused slots are NaN.
  template <class K>
  struct Pages {
    std::vector<K> keys, values;
    cpu::PagedKv<const K> kv;
  };
  template <class K>
  Pages<K> store() const {
    Pages<K> p;
    const auto [heads, kv_heads, d, page_rows, window, tree, b, cross] = shape;
    p.keys.assign(static_cast<size_t>(page_count * kv_heads * page_rows * d),
                  static_cast<K>(std::numeric_limits<float>::quiet_NaN()));
    p.values = p.keys;
    const cpu::PagedKv<K> to{kv_heads, d, page_rows, p.keys.data(), p.values.data()};
    for (size_t s = 0; s < cache_rows.size(); ++s) {
      for (int row = 0; row < cache_rows[s]; ++row) {
        const int page = page_of[s][static_cast<size_t>(row / page_rows)];
        for (int h = 0; h < kv_heads; ++h) {
          const auto from = static_cast<size_t>((row * kv_heads + h) * d);
          for (int i = 0; i < d; ++i) {
            to.key(page, h, row % page_rows)[i * page_rows] = static_cast<K>(k[s][from + i]);
            to.value(page, h, row % page_rows)[i] = static_cast<K>(v[s][from + i]);
          }
        }
      }
    }
    p.kv = {kv_heads, d, page_rows, p.keys.data(), p.values.data()};
    return p;
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }

  // Attention for the rows of `c`, whose queries are rows `which` of q.
  template <class X, class K>
  std::vector<X> run(const RowColumns& c, const std::vector<int>& which) const {
    using A = cpu::Accumulated<X>;
    const Pages<K> p = store<K>();
    const int width = shape.heads * shape.head_dim;
    std::vector<X> queries;
    for (const int r : which) {
      for (int i = 0; i < width; ++i) {
        queries.push_back(static_cast<X>(q[static_cast<size_t>(r * width + i)]));
      }
      for (int i = 0; i < 5; ++i) queries.push_back(static_cast<X>(NAN));  // gaps between rows
    }
    const std::vector<A> table(bias.begin(), bias.end());
    cpu::DistanceBias<A> by_distance;
    if (shape.bias) by_distance = {table.data(), kBefore, kAfter};
    std::vector<X> out(which.size() * static_cast<size_t>(width));
    cpu::attention<X, K>({queries.data(), width + 5, out.data(), shape.heads}, view_of(c), p.kv,
                         scale(), by_distance);
    return out;
  }
  template <class X, class K>
  std::vector<X> run() const {
    std::vector<int> all;
    for (int r = 0; r < rows(); ++r) all.push_back(r);
    return run<X, K>(columns, all);
  }

  // Everything except q . k in the score of head h of row r with its i-th visible key.
  double bias_of(int h, int r, int i) const {
    if (!shape.bias) return 0;
    const auto row = static_cast<size_t>(r);
    const int distance = first_number[row] + i - columns.position[row];
    return bias[static_cast<size_t>(h * (kBefore + 1 + kAfter) + kBefore +
                                    std::clamp(distance, -kBefore, kAfter))];
  }

 private:
  void add_sequence(int past, int added, std::mt19937_64& random) {
    const int id = static_cast<int>(cache_rows.size());
    std::vector<std::vector<int>> paths;  // per new row: visible new rows
    for (int i = 0; i < added; ++i) {
      int parent = i - 1;
      if (shape.tree && random() % 3 == 0) {
        parent = static_cast<int>(random() % static_cast<uint64_t>(i + 1)) - 1;
      }
      std::vector<int>& path = paths.emplace_back();
      if (parent >= 0) path = paths[static_cast<size_t>(parent)];
      path.push_back(past + i);
      sequence.push_back(id);
      columns.slot.push_back(0);
      std::vector<int> all;
      if (shape.cross) {
        for (int c = 0; c < past; ++c) all.push_back(c);
        columns.position.push_back(i);
      } else {
        for (int c = 0; c < past; ++c) all.push_back(c);
        all.insert(all.end(), path.begin(), path.end());
        columns.position.push_back(static_cast<int>(all.size()) - 1);
      }
      const auto n = static_cast<int>(all.size());
      const int first = shape.window > 0 ? std::max(0, n - shape.window) : 0;
      int dense = 0;
      while (dense < n && all[static_cast<size_t>(dense)] == dense) ++dense;
      columns.first_key.push_back(std::min(first, dense));
      columns.dense_end.push_back(dense);
      columns.extra_begin.push_back(static_cast<int32_t>(extra.size()));
      extra.insert(extra.end(), all.begin() + std::max(first, dense), all.end());
      columns.extra_end.push_back(static_cast<int32_t>(extra.size()));
      columns.prompts.push_back(0);
      context.emplace_back(all.begin() + first, all.end());
      first_number.push_back(first);
    }
    cache_rows.push_back(shape.cross ? past : past + added);
  }
};

}  // namespace tandem
