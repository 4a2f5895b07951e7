// Checks of attention: contexts, several sequences and rows, trees, windows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/exact.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#include "engine/backend/torch/cuda/kernels/attention.h"
#include "engine/backend/torch/row_view.h"

namespace tandem::cuda::program {

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
    tables.push_back(0);  // for a wrong kernel that reads one key too many
  }

  int64_t at(std::pair<int64_t, int> place, int kv_head) const {
    return ((place.first * kv_heads + kv_head) * page_rows + place.second) * head_dim;
  }

  int heads, kv_heads, head_dim, page_rows;
  uint64_t seed;
  Buffer<BFloat16> keys, values;
  std::vector<int32_t> tables;
};

// `each` rows per sequence. The last row sees `context` keys. shift: pages left out of
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
    a.grid = attention_grid<BFloat16>(a.rows, {a.kv.heads, a.kv.kv_heads, a.kv.head_dim});
    if (a.grid.splits == 1) return;
    const int64_t parts = int64_t{a.grid.slice_rows} * a.kv.heads * a.grid.splits;
    if (parts * (a.kv.head_dim + 2) > memory.size()) throw std::runtime_error("too little scratch");
    a.parts.sums = memory.ptr();
    a.parts.tops = a.parts.sums + parts * a.kv.head_dim;
    a.parts.totals = a.parts.tops + parts;
  }
  // At most kMostPartBytes, or the parts of one row.
  static int64_t size_for(int64_t rows, int heads, int head_dim, int64_t keys) {
    const int64_t of_row = heads * (keys / kSplitKeys + 1) * (head_dim + 2);
    return std::max(of_row, std::min(rows * of_row, kMostPartBytes / int64_t{sizeof(float)}));
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

}  // namespace tandem::cuda::program
