// Times of kernels on a device: replays of a graph of launches, which use copies of their data in
// turn. nvcc only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/checks.h"
#include "bench/kernels/memory.h"
#include "bench/kernels/report.h"

namespace tandem::cuda::program {

inline constexpr int64_t kBetween = int64_t{256} << 20;  // bytes read between two uses of a copy
inline constexpr int kLeastLaunches = 50;
inline constexpr double kLong = 5000;  // microseconds

// Copies of `bytes` that calls use in turn.
inline int copies_of(int64_t bytes) {
  return static_cast<int>(1 + (kBetween + bytes - 1) / std::max<int64_t>(1, bytes));
}

// Launches of the stream, captured as a graph.
class Graph {
 public:
  template <class Work>
  explicit Graph(const Work& work) {
    need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin a capture");
    work();
    cudaGraph_t graph = nullptr;
    need(cudaStreamEndCapture(stream, &graph), "end a capture");
    need(cudaGraphInstantiate(&graph_, graph, 0), "instantiate a graph");
    need(cudaGraphDestroy(graph), "destroy a graph");
    need(cudaGraphUpload(graph_, stream), "upload a graph");
    finish("upload a graph");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }

  void replay() const { need(cudaGraphLaunch(graph_, stream), "replay a graph"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class Timer {
 public:
  // seconds: of each figure
  explicit Timer(double seconds) : seconds_(seconds), events_(kMostReplays + 1) {
    for (cudaEvent_t& event : events_) need(cudaEventCreate(&event), "cudaEventCreate");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
  }

  // Microseconds of each of n calls of work(), which are queued together, so that the device does
  // not wait for the host.
  template <class Work>
  std::vector<double> each(const Work& work, int n) const {
    record(0);
    for (int i = 1; i <= n; ++i) {
      work();
      record(i);
    }
    finish("timed launches");
    std::vector<double> all;
    for (int i = 1; i <= n; ++i) {
      float ms = 0;
      need(cudaEventElapsedTime(&ms, events_[static_cast<size_t>(i) - 1],
                                events_[static_cast<size_t>(i)]),
           "cudaEventElapsedTime");
      all.push_back(1e3 * static_cast<double>(ms));
    }
    return all;
  }
  // Microseconds of a replay: the median.
  double replays(const Graph& graph, int least) const {
    const auto replay = [&] { graph.replay(); };
    const double one = std::max(1.0, each(replay, 2).back());
    const double wanted = std::min<double>(seconds_ * 1e6 / one, kMostReplays);
    std::vector<double> all = each(replay, std::max(least, static_cast<int>(wanted)));
    std::nth_element(all.begin(), all.begin() + static_cast<int64_t>(all.size()) / 2, all.end());
    return all[all.size() / 2];
  }
  // Microseconds of a launch: the median over at least five replays and fifty launches of work(i),
  // ten if one takes long. copies: of the data
  template <class Work>
  double launches(const Work& work, int copies) const {
    work(0);
    finish("the first launch");
    const double one = std::max(1.0, each([&] { work(1); }, 2).back());
    const int most = std::max(2, static_cast<int>(seconds_ * 1e6 / 4 / one));
    const int n = std::min(std::max(100, std::min(copies, 512)), most);
    const Graph graph([&] {
      for (int i = 0; i < n; ++i) {
        work(i);
        launched("a captured launch");
      }
    });
    const int least = one > kLong ? kLeastLaunches / 5 : kLeastLaunches;
    return replays(graph, std::max(5, (least + n - 1) / n)) / n;
  }

 private:
  static constexpr int kMostReplays = 400;

  void record(int i) const {
    need(cudaEventRecord(events_[static_cast<size_t>(i)], stream), "cudaEventRecord");
  }

  double seconds_;
  std::vector<cudaEvent_t> events_;
};

template <int kDepth>
__global__ void read_kernel(const uint4* from, int64_t words, uint32_t* found) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  uint32_t all = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words;
       i += stride * kDepth) {
    uint4 x[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      x[d] = i + d * stride < words ? read_once(from, i + d * stride) : uint4{};
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) all ^= x[d].x ^ x[d].y ^ x[d].z ^ x[d].w;
  }
  if (all == 0x12345678u) *found = all;
}

// What the program measures.
class Times {
 public:
  Times(Report& report, const Shape& shape, double seconds, uint64_t seed)
      : report_(report), s_(shape), timer_(seconds), seed_(seed) {}

  // The bandwidth of reads, which shares need.
  void ceilings(int64_t bytes) {
    const Buffer<uint4> from(bytes / 16);
    const Buffer<uint32_t> found(1);
    for (const int blocks : {2, 4, 8, 16}) {
      const double us = timer_.launches(
          [&](int) {
            read_kernel<8><<<s_.multiprocessors * blocks, 256, 0, stream>>>(from.raw(), from.size(),
                                                                            found.raw());
          },
          1);
      const double rate = static_cast<double>(bytes) / us / 1e3;
      read_ = std::max(read_, rate);
      report_.put("read.blocks_" + std::to_string(blocks), rate, "GB/s");
    }
    report_.put("read", read_, "GB/s");
    const Buffer<int32_t> token(1), to(1);
    const Buffer<ChosenToken> chosen(std::vector<ChosenToken>(1));
    const bool usual = launches_overlap;
    for (const bool overlap : {true, false}) {
      launches_overlap = overlap;
      const double us = timer_.launches(
          [&](int) { choose(stream, to.ptr(), token.ptr(), chosen.ptr(), 1, nullptr); }, 1);
      report_.put(overlap ? "launch.overlap" : "launch.no_overlap", us, "us");
    }
    launches_overlap = usual;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLeastLaunches; ++i) {
      choose(stream, to.ptr(), token.ptr(), chosen.ptr(), 1, nullptr);
      finish("a launch");
    }
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
    report_.put("launch.and_wait", 1e6 * all.count() / kLeastLaunches, "us");
  }

  template <class Wants>
  void all(const Wants& wants) {
    for (const int kv_heads : s_.kv_heads) {
      for (const Matrix& m : matrices(s_, kv_heads)) {
        if (wants("product." + m.name)) product_times(m);
        for (const QuantType type : {QuantType::kQ80, QuantType::kQ4K}) {
          const std::string name = std::string("blocks.") + name_of(type) + "." + m.name;
          if (wants(name)) block_times(name, m, type);
        }
      }
    }
    if (wants("elementwise")) elementwise_times();
    if (wants("fp8")) fp8_times();
    for (const int kv_heads : s_.kv_heads) {
      if (wants("rope")) rope_times(kv_heads);
    }
    if (wants("readout")) {
      for (const int64_t vocab : {s_.vocab, s_.long_vocab}) readout_times(vocab);
    }
    if (!wants("attention")) return;
    for (const int kv_heads : s_.kv_heads) attention_times(kv_heads);
  }

  // GB/s of the best read.
  double read() const { return read_; }
  const Timer& timer() const { return timer_; }

 private:
  // bytes: that a launch must read; 0: no share
  template <class Work>
  void put(const std::string& name, int64_t bytes, int copies, const Work& work) {
    const double us = timer_.launches(work, copies);
    char more[96] = "";
    if (bytes > 0) {
      const double rate = static_cast<double>(bytes) / us / 1e3;
      std::snprintf(more, sizeof(more), ", \"GB/s\": %.1f, \"share\": %.4f", rate, rate / read_);
    }
    report_.put(name, us, "us", more);
  }

  void product_times(const Matrix& m) {
    const PackedShape shape{m.outs, m.in, m.then == ProductThen::kGate};
    const int64_t numbers_of_one = shape.words() * 8, bytes = numbers_of_one * 2;
    const int copies = copies_of(bytes);
    const Buffer<BFloat16> weights(numbers_of_one * copies, seed_, 0x1p-6f);
    const Buffer<BFloat16> x(kMostProductRows * m.in, seed_ + 1, 1);
    const Buffer<BFloat16> out(kMostProductRows * m.width());
    const Buffer<float> sums(kMostProductRows * m.width(), seed_ + 3, 1);
    const auto work = [&](int i, int rows, int blocks) {
      ProductArguments<BFloat16> a;
      a.shape = shape;
      a.weights = weights.ptr() + i % copies * numbers_of_one;
      a.rows = rows;
      a.x = x.ptr();
      a.then = m.then;
      if (m.wide) {
        a.sums = sums.ptr();
      } else {
        a.out = out.ptr();
      }
      product<BFloat16>(stream, a, int64_t{blocks} * s_.multiprocessors);
    };
    const std::string name = "product." + m.name;
    for (const int rows : {1, 2, 4, 8, 16}) {
      put(name + ".rows_" + std::to_string(rows), bytes, copies,
          [&](int i) { work(i, rows, kProductBlocks); });
      if (rows != 1 && rows != 16) continue;
      for (const int blocks : {1, 3, 4}) {
        put(name + ".rows_" + std::to_string(rows) + ".blocks_" + std::to_string(blocks), bytes,
            copies, [&](int i) { work(i, rows, blocks); });
      }
    }
  }

  void block_times(const std::string& name, const Matrix& m, QuantType type) {
    const BlockShape shape{m.outs, m.in, m.then == ProductThen::kGate, type};
    const int64_t bytes = shape.words() * 16;
    const int copies = copies_of(bytes);
    // Random codes; scales of any size, also NaN, take the same time.
    const Buffer<BFloat16> weights(shape.words() * 8 * copies, seed_, 1);
    const Buffer<float> residual(kMostProductRows * m.in, seed_ + 1, 1);
    const Buffer<BFloat16> out(kMostProductRows * m.width());
    const RoundedRows rounded(m.outs, m.in, type);
    for (const int rows : {1, 8, 16}) {
      quantize_rows<float>(stream, rounded.view(), residual.ptr(), rows, m.in);
      finish("quantize_rows");
      const auto work = [&](int i, int blocks) {
        BlockArguments<BFloat16> a;
        a.shape = shape;
        a.weights = reinterpret_cast<const uint4*>(weights.raw()) + i % copies * shape.words();
        a.x = rounded.view();
        a.rows = rows;
        a.then = m.then == ProductThen::kGate ? m.then : ProductThen::kStore;
        a.out = out.ptr();
        block_product_of(a, int64_t{blocks} * s_.multiprocessors);
      };
      const std::string of = name + ".rows_" + std::to_string(rows);
      put(of, bytes, copies, [&](int i) { work(i, kBlockProductBlocks); });
      for (const int blocks : {1, 3, 4}) {
        if (rows != 1) break;
        put(of + ".blocks_" + std::to_string(blocks), bytes, copies,
            [&](int i) { work(i, blocks); });
      }
      put(name + ".quantize.rows_" + std::to_string(rows), 0, 1,
          [&](int) { quantize_rows<float>(stream, rounded.view(), residual.ptr(), rows, m.in); });
    }
  }

  // Rows stay in caches, as in a step.
  void elementwise_times() {
    const int64_t width = s_.hidden;
    const Buffer<BFloat16> table(s_.vocab * width, seed_, 1), y(16 * 2 * s_.inner, seed_, 1);
    const Buffer<float> x(16 * width, seed_, 1), weight(width, seed_, 1);
    const Buffer<BFloat16> out(16 * s_.inner);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 16 * 512; ++i) {
      tokens.push_back(static_cast<int32_t>(bits_at(seed_, i) % s_.vocab));
    }
    const Buffer<int32_t> token(tokens);
    const NormArguments<float> of_norm{false, weight.ptr(), nullptr, kEps};
    for (const int n : {1, 16}) {
      const std::string rows = ".rows_" + std::to_string(n);
      put("embed" + rows, 0, 512, [&](int i) {
        embed<BFloat16>(stream, x.ptr(), table.ptr(), token.ptr() + i % 512 * 16, n, width);
      });
      put("norm" + rows, 0, 1,
          [&](int) { norm<BFloat16>(stream, out.ptr(), x.ptr(), of_norm, n, width); });
      put("gate" + rows, 0, 1,
          [&](int) { gate<BFloat16>(stream, out.ptr(), y.ptr(), Activation::kSilu, n, s_.inner); });
    }
  }

  void fp8_times() {
    const int64_t most = std::max(s_.hidden, s_.inner);
    const Buffer<BFloat16> x(64 * most, seed_, 1);
    const Buffer<uint8_t> codes(64 * most);
    const Buffer<float> scales(64);
    for (const int64_t width : {s_.hidden, s_.inner}) {
      for (const int n : {1, 16, 64}) {
        put("fp8.width_" + std::to_string(width) + ".rows_" + std::to_string(n), 0, 1, [&](int) {
          round_rows<BFloat16>(stream, codes.ptr(), scales.ptr(), x.ptr(), n, width);
        });
      }
    }
  }

  void rope_times(int kv_heads) {
    const int64_t heads = s_.heads + 2 * kv_heads;
    constexpr int64_t kPages = 512;
    const int64_t of_pool = kPages * kv_heads * s_.page_rows * s_.head_dim;
    const Buffer<BFloat16> qkv(32 * heads * s_.head_dim, seed_, 1), keys(of_pool), values(of_pool);
    const Buffer<float> inverse(frequencies(s_.head_dim));
    for (const int n : {1, 8, 32}) {
      RowColumns c = decode_rows(s_, n, 1, 2000, 0);
      for (int r = 0; r < n; ++r)
        c.slot[static_cast<size_t>(r)] = (r * 13 + 5) * s_.page_rows + r % s_.page_rows;
      const PlacedRows rows(c, {0}, {0}, s_.page_rows);
      const PagedHeads<BFloat16> kv{s_.heads, kv_heads, s_.head_dim, keys.ptr(), values.ptr()};
      put("rope.kv_heads_" + std::to_string(kv_heads) + ".rows_" + std::to_string(n), 0, 1,
          [&](int) {
            rope_and_store<BFloat16>(stream, qkv.ptr(), rows.view(), kv, {inverse.ptr(), 1.0f});
          });
    }
  }

  void readout_times(int64_t vocab) {
    const Buffer<float> logits(32 * vocab, seed_, 12);
    const Buffer<RowAnswer> answers(32);
    std::vector<RowChange> neutral(512);  // so that every repetition reads the same logits
    for (size_t i = 0; i < neutral.size(); ++i) neutral[i].token = static_cast<int32_t>(7 * i);
    const Buffer<RowChange> changes(neutral);
    struct Kind {
      const char* name;
      RowQuestion question;
    };
    std::vector<Kind> kinds = {{"greedy", {}}, {"sampled", {}}, {"top_8", {}},  {"sums", {}},
                               {"top_p", {}},  {"top_k", {}},   {"changed", {}}};
    kinds[1].question.inverse_temperature = 1;
    kinds[2].question.top = kAnsweredTop;
    kinds[3].question.sums = 1;
    kinds[4].question.inverse_temperature = kinds[5].question.inverse_temperature = 1;
    kinds[4].question.top_p = 0.9f;
    kinds[5].question.top_k = 40;
    kinds[6].question.repetition = 1;
    kinds[6].question.changes = std::min(512, static_cast<int>(vocab) / 7);
    for (Kind& kind : kinds) {
      kind.question.vocab = static_cast<int32_t>(vocab);
      const Buffer<RowQuestion> asked(std::vector<RowQuestion>(32, kind.question));
      for (const int n : {1, 8, 32}) {
        put("readout." + std::string(kind.name) + ".vocab_" + std::to_string(vocab) + ".rows_" +
                std::to_string(n),
            4 * n * vocab, 1, [&](int) {
              answer_rows(stream, logits.ptr(), vocab, {changes.ptr(), nullptr, nullptr},
                          asked.ptr(), answers.ptr(), n);
            });
      }
    }
    const Buffer<int32_t> token(32), to(32);
    const Buffer<ChosenToken> chosen(std::vector<ChosenToken>(32, ChosenToken{0, -1}));
    put("choose.rows_32", 0, 1,
        [&](int) { choose(stream, to.ptr(), token.ptr(), chosen.ptr(), 32, answers.ptr()); });
  }

  void attention_times(int kv_heads) {
    const int most = *std::max_element(s_.contexts.begin(), s_.contexts.end());
    const int64_t most_rows = int64_t{*std::max_element(s_.sequences.begin(), s_.sequences.end())} *
                              *std::max_element(s_.rows_each.begin(), s_.rows_each.end());
    const AttentionScratch scratch(
        AttentionScratch::size_for(most_rows, s_.heads, s_.head_dim, most));
    const int64_t pages = pages_for(s_);
    const KvNumbers kv(s_, kv_heads, pages, seed_);
    const int64_t stride = int64_t{s_.heads + 2 * kv_heads} * s_.head_dim;
    const Buffer<BFloat16> qkv(most_rows * stride, seed_ + 1, 1);
    const Buffer<BFloat16> out(most_rows * s_.heads * s_.head_dim);
    for (const int context : s_.contexts) {
      for (const int sequences : s_.sequences) {
        for (const int each : s_.rows_each) {
          const int64_t of_one = int64_t{sequences} * ((context + s_.page_rows - 1) / s_.page_rows);
          const int64_t bytes = 4 * int64_t{sequences} * context * kv_heads * s_.head_dim;
          const int copies = static_cast<int>(
              std::max<int64_t>(1, std::min<int64_t>(copies_of(bytes), pages / of_one)));
          RowColumns columns;  // of all copies, one after another
          for (int i = 0; i < copies; ++i) {
            const RowColumns one = decode_rows(s_, sequences, each, context, i * of_one);
            for (int r = 0; r < one.rows(); ++r) columns.append(one, r);
          }
          const PlacedRows rows(std::move(columns), kv.tables, {0}, s_.page_rows);
          put("attention.kv_heads_" + std::to_string(kv_heads) + ".context_" +
                  std::to_string(context) + ".sequences_" + std::to_string(sequences) + ".rows_" +
                  std::to_string(each),
              bytes, copies, [&](int i) {
                AttentionArguments<BFloat16> a;
                a.out = out.ptr();
                a.qkv = qkv.ptr();
                a.q_stride = stride;
                a.rows = part_of(rows.view(), i % copies * sequences * each, sequences * each);
                a.kv = {s_.heads, kv_heads, s_.head_dim, kv.keys.ptr(), kv.values.ptr()};
                a.scale = 1 / std::sqrt(static_cast<float>(s_.head_dim));
                scratch.prepare(a);
                attention<BFloat16>(stream, a);
              });
        }
      }
    }
  }

  // Rows [first, first + n).
  static RowView part_of(RowView view, int first, int n) {
    view.rows = n;
    for (const int32_t** const column :
         {&view.position, &view.table, &view.first_key, &view.dense_end, &view.extra_begin,
          &view.extra_end, &view.prompts}) {
      *column += first;
    }
    view.slot += first;
    return view;
  }

  Report& report_;
  const Shape& s_;
  Timer timer_;
  uint64_t seed_;
  double read_ = 1;  // GB/s
};

}  // namespace tandem::cuda::program
