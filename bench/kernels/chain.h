// A decode step of a whole model as a chain of kernels: layers with weights of their own, one
// graph. The time of a step without LibTorch, and whether overlapping launches change its bits.
// nvcc only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/kernels/checks.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"
#ifdef __CUDACC__
#include "bench/kernels/timing.h"
#endif

namespace tandem::cuda::program {

class Chain {
 public:
  static constexpr int kMostRows = kMostProductRows;

  // kv_heads: as heads. pages: of a layer
  Chain(const Shape& s, int layers, int64_t pages, uint64_t seed)
      : s_(s),
        layers_(layers),
        of_layer_(pages * s.heads * s.page_rows * s.head_dim),
        keys_(of_layer_ * layers, seed + 20, 1),
        values_(of_layer_ * layers, seed + 21, 1),
        table_(s.vocab * s.hidden, seed + 22, 1),
        norm_weight_(s.hidden, seed + 23, 1),
        inverse_(frequencies(s.head_dim)),
        token_(kMostRows),
        x_(kMostRows * s.hidden),
        normed_(kMostRows * s.hidden),
        qkv_(kMostRows * 3 * s.heads * s.head_dim),
        attended_(kMostRows * s.heads * s.head_dim),
        gated_(kMostRows * s.inner),
        logits_(kMostRows * s.vocab),
        asked_(std::vector<RowQuestion>(kMostRows, greedy(s))),
        answers_(kMostRows),
        scratch_(AttentionScratch::size_for(kMostRows, s.heads, s.head_dim, pages * s.page_rows)) {
    for (int i = 0; i < static_cast<int>(pages); ++i) pages_.push_back(i);
    std::vector<int32_t> token(kMostRows);
    for (int r = 0; r < kMostRows; ++r) {
      token[static_cast<size_t>(r)] = static_cast<int32_t>(bits_at(seed, r) % s.vocab);
    }
    token_.write(token);
    for (const Matrix& m : matrices(s, s.heads)) {
      const int64_t n = shape_of(m).words() * 8 * (m.name == "head" ? 1 : layers);
      weights_.emplace_back(n, seed + weights_.size(), 0x1p-6f);
    }
  }

  // Parts of a step that are launched.
  struct Parts {
    bool products = true, rope = true, attention = true, ends = true;
  };

  // `each` rows per sequence. The last row sees `context` keys.
  PlacedRows rows_of(int sequences, int each, int context) const {
    RowColumns c = decode_rows(s_, sequences, each, context, 0);
    const int of_one = (context + s_.page_rows - 1) / s_.page_rows;
    for (size_t r = 0; r < c.slot.size(); ++r) {  // pages are in order
      const auto sequence = static_cast<int64_t>(r) / each;
      c.slot[r] = sequence * of_one * s_.page_rows + c.position[r];
    }
    return {std::move(c), pages_, {0}, s_.page_rows};
  }

  void launch_step(const RowView& rows, int blocks, const Parts& parts) {
    const std::vector<Matrix> all = matrices(s_, s_.heads);
    if (parts.ends) {
      embed<BFloat16>(stream, x_.ptr(), table_.ptr(), token_.ptr(), rows.rows, s_.hidden);
      launched("embed");
    }
    for (int layer = 0; layer < layers_; ++layer) {
      const PagedHeads<BFloat16> kv{s_.heads, s_.heads, s_.head_dim,
                                    keys_.ptr() + layer * of_layer_,
                                    values_.ptr() + layer * of_layer_};
      if (parts.products) multiply(all, 0, layer, rows.rows, blocks, x_, qkv_);
      if (parts.rope) {
        rope_and_store<BFloat16>(stream, qkv_.ptr(), rows, kv, {inverse_.ptr(), 1.0f});
        launched("rope_and_store");
      }
      if (parts.attention) attend(rows, {kv.heads, kv.kv_heads, kv.head_dim, kv.keys, kv.values});
      if (!parts.products) continue;
      multiply(all, 1, layer, rows.rows, blocks, attended_, x_);
      multiply(all, 2, layer, rows.rows, blocks, x_, gated_);
      multiply(all, 3, layer, rows.rows, blocks, gated_, x_);
    }
    if (!parts.ends) return;
    multiply(all, 4, 0, rows.rows, blocks, x_, logits_);
    answer_rows(stream, logits_.ptr(), s_.vocab, ReadChanges(), asked_.ptr(), answers_.ptr(),
                rows.rows);
    launched("answer_rows");
  }

  std::vector<float> logits() const { return logits_.read(); }
  void poison() {
    logits_.poison();
    x_.poison();
  }
  // Bytes of weights, keys and values that a step reads.
  int64_t weight_bytes() const {
    int64_t bytes = 0;
    for (const Buffer<BFloat16>& w : weights_) bytes += static_cast<int64_t>(w.bytes());
    return bytes;
  }
  int64_t kv_bytes(int64_t keys) const {
    return keys * layers_ * 2 * s_.heads * s_.head_dim * static_cast<int64_t>(sizeof(BFloat16));
  }

 private:
  static PackedShape shape_of(const Matrix& m) {
    return {m.outs, m.in, m.then == ProductThen::kGate};
  }
  static RowQuestion greedy(const Shape& s) {
    RowQuestion q;
    q.vocab = static_cast<int32_t>(s.vocab);
    return q;
  }

  template <class From, class To>
  void multiply(const std::vector<Matrix>& all, size_t which, int layer, int rows, int blocks,
                const Buffer<From>& from, const Buffer<To>& to) {
    const Matrix& m = all[which];
    ProductArguments<BFloat16> a;
    a.shape = shape_of(m);
    a.weights = weights_[which].ptr() + layer * a.shape.words() * 8;
    a.rows = rows;
    a.then = m.then;
    if constexpr (std::is_same_v<From, float>) {
      norm<BFloat16>(stream, normed_.ptr(), from.ptr(), {false, norm_weight_.ptr(), nullptr, kEps},
                     rows, m.in);
      launched("norm");
      a.x = normed_.ptr();
    } else {
      a.x = from.ptr();
    }
    if constexpr (std::is_same_v<To, float>) {
      a.sums = to.ptr();
    } else {
      a.out = to.ptr();
    }
    product<BFloat16>(stream, a, int64_t{blocks} * s_.multiprocessors);
    launched("product");
  }

  void attend(const RowView& rows, const PagedHeads<const BFloat16>& kv) {
    AttentionArguments<BFloat16> a;
    a.out = attended_.ptr();
    a.qkv = qkv_.ptr();
    a.q_stride = int64_t{3} * s_.heads * s_.head_dim;
    a.rows = rows;
    a.kv = kv;
    a.scale = 1 / std::sqrt(static_cast<float>(s_.head_dim));
    scratch_.prepare(a);
    attention<BFloat16>(stream, a);
    launched("attention");
  }

  const Shape& s_;
  int layers_;
  int64_t of_layer_;
  std::vector<int32_t> pages_;
  std::vector<Buffer<BFloat16>> weights_;
  Buffer<BFloat16> keys_, values_, table_;
  Buffer<float> norm_weight_, inverse_;
  Buffer<int32_t> token_;
  Buffer<float> x_;
  Buffer<BFloat16> normed_, qkv_, attended_, gated_;
  Buffer<float> logits_;
  Buffer<RowQuestion> asked_;
  Buffer<RowAnswer> answers_;
  AttentionScratch scratch_;
};

// Rows of a step: `each` of every sequence.
struct ChainCase {
  int sequences, each, context;

  std::string name() const {
    return "chain.sequences_" + std::to_string(sequences) + ".rows_" + std::to_string(each) +
           ".context_" + std::to_string(context);
  }
};

#ifdef __CUDACC__

// Launched or replayed, overlapping or not: the same bits.
inline void check_chain(Report& report, Chain& chain, const ChainCase& of) {
  const std::string name = of.name();
  const int rows = of.sequences * of.each;
  const PlacedRows placed = chain.rows_of(of.sequences, of.each, of.context);
  std::vector<float> first;
  bool same = true;
  const bool usual = launches_overlap;
  for (const bool overlap : {false, true}) {
    launches_overlap = overlap;
    const Graph graph([&] { chain.launch_step(placed.view(), kProductBlocks, {}); });
    for (const bool replayed : {false, true}) {
      for (int turn = 0; turn < 3; ++turn) {
        chain.poison();
        if (replayed) {
          graph.replay();
        } else {
          chain.launch_step(placed.view(), kProductBlocks, {});
        }
        finish("a chain");
        std::vector<float> logits = chain.logits();
        logits.resize(logits.size() / Chain::kMostRows * static_cast<size_t>(rows));
        if (first.empty()) first = logits;
        const bool equal =
            equal_bits(first.data(), logits.data(), static_cast<int64_t>(logits.size()));
        if (!equal) {
          report.fail(name, std::string(overlap ? "overlapping" : "one by one") +
                                (replayed ? ", replayed" : ", launched") + ": other bits");
        }
        same = same && equal;
      }
    }
  }
  launches_overlap = usual;
  report.same(name + ".bits", same);
  report.same(name + ".finite",
              std::all_of(first.begin(), first.end(), [](float x) { return std::isfinite(x); }));
}

inline void time_chain(Report& report, const Timer& timer, double read, Chain& chain,
                       const ChainCase& of) {
  const std::string name = of.name();
  const PlacedRows placed = chain.rows_of(of.sequences, of.each, of.context);
  const int64_t kv = chain.kv_bytes(int64_t{of.sequences} * of.context);
  const auto put = [&](const std::string& what, int64_t bytes, int blocks,
                       const Chain::Parts& parts) {
    const Graph graph([&] { chain.launch_step(placed.view(), blocks, parts); });
    const double us = timer.replays(graph, kLeastLaunches);
    char more[96];
    const double rate = static_cast<double>(bytes) / us / 1e3;
    std::snprintf(more, sizeof(more), ", \"GB/s\": %.1f, \"share\": %.4f", rate, rate / read);
    report.put(name + what, us, "us", more);
  };
  const int64_t weights = chain.weight_bytes();
  put("", weights + kv, kProductBlocks, {});
  launches_overlap = !launches_overlap;
  put(launches_overlap ? ".overlap" : ".no_overlap", weights + kv, kProductBlocks, {});
  launches_overlap = !launches_overlap;
  for (const int blocks : {1, 3, 4}) {
    put(".blocks_" + std::to_string(blocks), weights + kv, blocks, {});
  }
  put(".without_attention", weights, kProductBlocks, {.attention = false});
  put(".products_alone", weights, kProductBlocks, {.rope = false, .attention = false});
  put(".attention_alone", kv, kProductBlocks, {.products = false, .rope = false, .ends = false});
  put(".rope_alone", 0, kProductBlocks, {.products = false, .attention = false, .ends = false});
  put(".ends_alone", 0, kProductBlocks, {.products = false, .rope = false, .attention = false});
}

#endif

}  // namespace tandem::cuda::program
