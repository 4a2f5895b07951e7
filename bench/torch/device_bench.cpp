// Measures a device's limits and how close its kernels come: bandwidth of copies and reads, latency
// of launches and waits, products of few rows, also of weights in blocks of 4 to 8 bits, additions
// of LoRA adapters, and attention. Prints one JSON object per line:
//
//   {"name": "product.gate_up.rows_1", "value": 41.2, "unit": "us", "share": 0.83}
//
// share: the time to read the weights, or keys and values, at this run's memory bandwidth, divided
// by the measured time. Calls use copies in turn, so that caches hold none of them. bits
// (products): whether each row's bits equal those of a batch of one. Products with packed weights,
// if the device has them, are packed.gate_up.rows_1 and so on; with weights in blocks,
// blocks.q4_k.gate_up.rows_1.
//
// product.gate_up.difference, packed.gate_up.difference, lora.*.difference (if the device has such
// kernels) and attention.*.difference are the largest difference from fp64 on the CPU, relative to
// the root mean square. blocks.q4_k.gate_up.difference is the relative difference from the CPU's
// product. If one is too large, the exit status is 1.
//
//   build/cuda/bin/bench_device --device cuda:0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/torch/random_model.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/model/linear.h"
#include "engine/backend/torch/open_queue.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/platform.h"
#include "engine/backend/torch/row_view.h"
#include "engine/base/check.h"
#include "engine/base/device_name.h"
#include "engine/base/flags.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// By default the shape of Llama-2-7B.
struct Shape {
  int64_t hidden = 4096, inner = 11008, vocab = 32000, copy_bytes = int64_t{2} << 30;
  int64_t between = int64_t{256} << 20;  // bytes read between two reads of one copy
  int heads = 32, kv_heads = 32, head_dim = 128, page_rows = 16;
  std::vector<int> contexts = {256, 2048};
};

// For tests of this program.
Shape small_shape() {
  return {.hidden = 256,
          .inner = 512,
          .vocab = 500,
          .copy_bytes = 1 << 20,
          .between = 1 << 20,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = 32,
          .contexts = {40}};
}

void put(const std::string& name, double value, const char* unit, const std::string& more = "") {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"%s}\n", name.c_str(), value,
              unit, more.c_str());
  std::fflush(stdout);
}

class Bench {
 public:
  Bench(const DeviceConfig& config, const Shape& shape, double seconds)
      : shape_(shape), seconds_(seconds), device_(platform_for(config).device(config.index)) {
    store_.device = device_;
    store_.dtype = *platform_for(config).weight_dtype(DType::kAuto, SafeDType::kBF16);
    absl::StatusOr<OpenedQueue> opened = open_queue(config, shared_);
    if (!opened.ok()) std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    TANDEM_CHECK(opened.ok());
    if (opened->queue != nullptr) device_queue_.emplace(std::move(opened->queue));
  }

  void ceilings();
  void products();
  void blocks();
  void loras();
  void attention();
  bool wrong() const { return wrong_; }

 private:
  static const Platform& platform_for(const DeviceConfig& config) {
    const absl::StatusOr<const Platform*> platform = find_platform(config);
    if (!platform.ok()) std::fprintf(stderr, "%s\n", platform.status().ToString().c_str());
    TANDEM_CHECK(platform.ok());
    return **platform;
  }
  const DeviceQueue* device_queue() const { return device_queue_ ? &*device_queue_ : nullptr; }
  void wait() const {
    if (device_queue_) device_queue_->queue->synchronize();
  }
  at::TensorOptions rows() const {
    return at::TensorOptions().dtype(store_.rows()).device(device_);
  }
  at::Tensor random_rows(at::IntArrayRef shape, uint32_t seed) const;
  template <class T>
  at::Tensor on_device(const std::vector<T>& numbers, at::ScalarType type) const;

  // Seconds per call of queued calls: the median of five turns. work: takes the number of the call
  double time(const std::function<void(size_t)>& work) const;
  // Copies that calls use in turn. bytes: of one
  size_t copies_of(int64_t bytes) const {
    return 1 + static_cast<size_t>((shape_.between + bytes - 1) / bytes);
  }
  // Seconds per call, waiting for each call.
  double time_each(const std::function<void()>& work) const;
  void copies_between_host_and_device() const;
  void product(const std::string& name, int64_t outs, int64_t in);
  void block_product(const RandomBlocks& type, const std::string& name, int64_t outs, int64_t in);
  Linear load(const TensorView& weights, const WeightStore& store) const;
  std::vector<Linear> load_copies(const TensorView& weights, const WeightStore& store) const;
  void multiply(const std::string& name, const std::vector<Linear>& copies,
                const std::vector<int>& rows);
  void compare(const std::string& name, const Linear& linear, const at::Tensor& weights,
               const std::vector<int>& rows);
  void lora(const std::string& name, int64_t outs, int64_t in, int rank, int rows);
  void attend(int sequences, int rows, int context);
  at::Tensor attended(const at::Tensor& qkv, const LayerKv& kv, const at::Tensor& pages, int row,
                      int keys) const;
  void put_difference(const std::string& name, const at::Tensor& got, const at::Tensor& want);
  std::string share(double bytes, double seconds) const;

  Shape shape_;
  double seconds_;
  at::Device device_;
  TorchShared shared_;
  std::optional<DeviceQueue> device_queue_;
  WeightStore store_;
  double read_rate_ = 0;  // bytes per second
  bool wrong_ = false;
};

at::Tensor Bench::random_rows(at::IntArrayRef shape, uint32_t seed) const {
  at::Tensor all = at::empty(shape, at::kFloat);
  std::mt19937 random(seed);
  auto* const x = all.mutable_data_ptr<float>();
  for (int64_t i = 0; i < all.numel(); ++i) x[i] = static_cast<float>(random() % 2001) / 1000 - 1;
  return all.to(rows());
}

template <class T>
at::Tensor Bench::on_device(const std::vector<T>& numbers, at::ScalarType type) const {
  at::Tensor all = at::empty({static_cast<int64_t>(numbers.size())}, type);
  std::memcpy(all.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(T));
  return all.to(device_);
}

double Bench::time(const std::function<void(size_t)>& work) const {
  size_t call = 0;
  const auto next = [&] { launch(device_queue(), [&work, i = call++] { work(i); }); };
  for (int i = 0; i < 3; ++i) next();
  wait();
  int n = 1;
  std::vector<double> each;
  while (each.size() < 5) {
    const auto start = Clock::now();
    for (int i = 0; i < n; ++i) next();
    wait();
    const double took = seconds_since(start);
    if (took < seconds_ / 10 && n < 100000) {
      n *= 2;
    } else {
      each.push_back(took / n);
    }
  }
  std::sort(each.begin(), each.end());
  return each[2];
}

double Bench::time_each(const std::function<void()>& work) const {
  std::vector<double> each;
  const auto begin = Clock::now();
  while (each.size() < 20 || (seconds_since(begin) < seconds_ && each.size() < 10000)) {
    const auto start = Clock::now();
    launch(device_queue(), work);
    wait();
    each.push_back(seconds_since(start));
  }
  std::nth_element(each.begin(), each.begin() + static_cast<int64_t>(each.size()) / 2, each.end());
  return each[each.size() / 2];
}

std::string Bench::share(double bytes, double seconds) const {
  char text[64];
  std::snprintf(text, sizeof(text), ", \"share\": %.4f", bytes / read_rate_ / seconds);
  return text;
}

void Bench::ceilings() {
  const auto bytes = static_cast<double>(shape_.copy_bytes);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device_);
  const at::Tensor from = at::zeros({shape_.copy_bytes / 4}, options);
  at::Tensor to = at::zeros({shape_.copy_bytes / 4}, options);
  wait();
  const double read = time([&](size_t) { at::sum(from); });
  read_rate_ = bytes / read;
  put("read", read_rate_ / 1e9, "GB/s");
  put("copy", 2 * bytes / time([&](size_t) { to.copy_(from); }) / 1e9, "GB/s");
  at::Tensor one = at::zeros({1}, options);
  put("launch", 1e6 * time([&](size_t) { one.add_(1); }), "us");
  put("round_trip", 1e6 * time_each([&] { one.add_(1); }), "us");
  if (device_queue_) copies_between_host_and_device();
}

void Bench::copies_between_host_and_device() const {
  Queue& queue = *device_queue_->queue;
  const size_t n = static_cast<size_t>(std::min(shape_.copy_bytes, int64_t{256} << 20));
  const auto host = queue.host_memory(n);
  const auto device = queue.device_memory(n);
  queue.zero(device.get(), n);
  queue.synchronize();
  const auto rate = [&](void* to, const void* from) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      queue.copy(to, from, n);
      queue.synchronize();
      best = std::min(best, seconds_since(start));
    }
    return static_cast<double>(n) / best / 1e9;
  };
  put("copy_to_host", rate(host.get(), device.get()), "GB/s");
  put("copy_to_device", rate(device.get(), host.get()), "GB/s");
  const auto event = queue.event();
  const auto start = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    queue.record(*event);
    queue.wait(*event);
  }
  queue.synchronize();
  put("record_and_wait", 1e6 * seconds_since(start) / 1000, "us");
}

void Bench::product(const std::string& name, int64_t outs, int64_t in) {
  std::vector<float> numbers(static_cast<size_t>(outs * in));
  std::mt19937 random(1);
  for (float& x : numbers) x = static_cast<float>(random() % 2001) / 25000 - 0.04f;
  TensorView view;
  view.shape = {outs, in};
  view.data = reinterpret_cast<const std::byte*>(numbers.data());
  view.bytes = numbers.size() * sizeof(float);
  std::vector<Linear> copies = load_copies(view, store_);
  const at::Tensor weights = at::from_blob(numbers.data(), {outs, in}, at::kFloat);
  multiply("product." + name, copies, {1, 2, 4, 8, 16, 64});
  compare("product." + name, copies.front(), weights, {1, 16, 64});
  if (copies.front().packed_bytes() == 0) return;
  for (Linear& linear : copies) linear.pack();
  multiply("packed." + name, copies, {1, 2, 4, 8, 16});
  compare("packed." + name, copies.front(), weights, {1, 2, 4, 8, 16});
}

std::vector<Linear> Bench::load_copies(const TensorView& weights, const WeightStore& store) const {
  std::vector<Linear> copies;
  copies.push_back(load(weights, store));
  const size_t n = copies_of(copies.front().bytes());
  while (copies.size() < n) copies.push_back(load(weights, store));
  return copies;
}

// Up to 2,048 outputs, spread evenly. weights: [outs, in] fp32, before they are rounded to the type
// of the device
void Bench::compare(const std::string& name, const Linear& linear, const at::Tensor& weights,
                    const std::vector<int>& rows) {
  constexpr int64_t kMostOuts = 2048;
  const int64_t outs = linear.outs();
  const int64_t step = (outs + kMostOuts - 1) / kMostOuts;
  const at::Tensor some = weights.slice(0, 0, outs, step).to(store_.rows()).to(at::kDouble);
  const at::Tensor x = random_rows({rows.back(), linear.in()}, 2);
  const at::Tensor whole = at::matmul(x.cpu().to(at::kDouble), some.t());
  std::vector<at::Tensor> got, want;
  for (const int n : rows) {
    at::Tensor out = at::empty({n, outs}, at::TensorOptions().dtype(at::kFloat).device(device_));
    launch(device_queue(), [&] { linear.into(out, LinearInput(x.narrow(0, 0, n))); });
    wait();
    got.push_back(out.cpu().slice(1, 0, outs, step).to(at::kDouble));
    want.push_back(whole.narrow(0, 0, n));
  }
  put_difference(name, at::cat(got), at::cat(want));
}

void Bench::put_difference(const std::string& name, const at::Tensor& got, const at::Tensor& want) {
  // Rows of 16 bits round each result once.
  const double most = at::elementSize(store_.rows()) == 2 ? 3e-2 : 1e-3;
  const double worst =
      (got - want).abs().max().item<double>() / std::sqrt((want * want).mean().item<double>());
  put(name + ".difference", worst, "of fp64");
  if (worst <= most) return;
  std::fprintf(stderr, "%s.difference: %g; allowed: up to %g\n", name.c_str(), worst, most);
  wrong_ = true;
}

Linear Bench::load(const TensorView& weights, const WeightStore& store) const {
  const TensorMap source({{"w.weight", weights}});
  absl::StatusOr<Linear> linear = Linear::load(
      source, store, {.names = {"w"}, .outs = {weights.shape.front()}, .in = weights.shape.back()});
  if (!linear.ok()) std::fprintf(stderr, "%s\n", linear.status().ToString().c_str());
  TANDEM_CHECK(linear.ok());
  return *std::move(linear);
}

void Bench::block_product(const RandomBlocks& type, const std::string& name, int64_t outs,
                          int64_t in) {
  const std::vector<std::byte> bytes = random_blocks(type, outs * in);
  TensorView view;
  view.shape = {outs, in};
  view.data = bytes.data();
  view.bytes = bytes.size();
  view.block = find_block_format(static_cast<uint32_t>(type.type));
  const std::vector<Linear> copies =
      load_copies(view, {.dtype = DType::kStored, .device = device_});
  const Linear& linear = copies.front();
  const std::string whole = "blocks." + block_name(type) + "." + name;
  multiply(whole, copies, {1, 8, 16, 64});

  constexpr int64_t kRows = 16;
  constexpr double kMost = 1e-3;  // far above the effect of another order of fp32 sums
  const at::Tensor x = random_rows({kRows, in}, 2);
  at::Tensor got = at::empty({kRows, outs}, at::TensorOptions().dtype(at::kFloat).device(device_));
  launch(device_queue(), [&] { linear.into(got, LinearInput(x)); });
  wait();
  at::Tensor want = at::empty({kRows, outs}, at::kFloat);
  load(view, {.dtype = DType::kStored}).into(want, LinearInput(x.to(at::kCPU).to(at::kFloat)));
  const double norm = want.norm().item<float>();
  const double off = (got.to(at::kCPU) - want).norm().item<float>() / norm;
  put(whole + ".difference", off, "of the CPU's");
  if (off <= kMost) return;
  std::fprintf(stderr, "%s: %g from the CPU's product, relative; allowed: up to %g\n",
               whole.c_str(), off, kMost);
  wrong_ = true;
}

void Bench::blocks() {
  const int64_t q = int64_t{shape_.heads} * shape_.head_dim;
  const int64_t kv = int64_t{shape_.kv_heads} * shape_.head_dim;
  for (const RandomBlocks& type : kRandomBlocks) {
    block_product(type, "gate_up", 2 * shape_.inner, shape_.hidden);
    if (type.type != BlockType::kQ4K) continue;
    block_product(type, "qkv", q + 2 * kv, shape_.hidden);
    block_product(type, "o", shape_.hidden, q);
    block_product(type, "down", shape_.hidden, shape_.inner);
    block_product(type, "head", shape_.vocab, shape_.hidden);
  }
}

void Bench::multiply(const std::string& name, const std::vector<Linear>& copies,
                     const std::vector<int>& rows) {
  const Linear& linear = copies.front();
  const int64_t outs = linear.outs();
  const at::Tensor x = random_rows({rows.back(), linear.in()}, 2);
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device_);
  std::vector<at::Tensor> single;  // each row in a batch of one
  for (int64_t r = 0; r < rows.back(); ++r) {
    at::Tensor& out = single.emplace_back(at::empty({1, outs}, fp32));
    const at::Tensor row = x.narrow(0, r, 1);
    launch(device_queue(), [&] { linear.into(out, LinearInput(row)); });
    wait();
  }
  for (const int n : rows) {
    const at::Tensor some = x.narrow(0, 0, n);
    at::Tensor out = at::empty({n, outs}, fp32);
    const double took =
        time([&](size_t call) { copies[call % copies.size()].into(out, LinearInput(some)); });
    launch(device_queue(), [&] { linear.into(out, LinearInput(some)); });
    wait();
    bool same = true;
    for (int r = 0; r < n; ++r) {
      same = same && out[r].cpu().equal(single[static_cast<size_t>(r)][0].cpu());
    }
    put(name + ".rows_" + std::to_string(n), 1e6 * took, "us",
        share(static_cast<double>(linear.bytes()), took) +
            ", \"bits\": " + (same ? "true" : "false"));
  }
}

void Bench::products() {
  const int64_t q = int64_t{shape_.heads} * shape_.head_dim;
  const int64_t kv = int64_t{shape_.kv_heads} * shape_.head_dim;
  product("qkv", q + 2 * kv, shape_.hidden);
  product("o", shape_.hidden, q);
  product("gate_up", 2 * shape_.inner, shape_.hidden);
  product("down", shape_.hidden, shape_.inner);
  product("head", shape_.vocab, shape_.hidden);
}

// Additions of adapters of one rank, another one for each row.
void Bench::lora(const std::string& name, int64_t outs, int64_t in, int rank, int n) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device_);
  const auto copies = static_cast<int64_t>(copies_of(int64_t{4} * n * rank * (in + outs)));
  const at::Tensor x = random_rows({n, in}, 2);
  const auto on_host = [](const at::Tensor& t) { return t.cpu().to(at::kFloat); };
  const at::Tensor host_a =
      on_host(random_rows({copies * n, rank, in}, 3)) / std::sqrt(static_cast<double>(in));
  const at::Tensor host_b = on_host(random_rows({copies * n, rank, outs}, 4));
  const at::Tensor a = host_a.to(device_), b = host_b.to(device_);
  std::vector<LoraLayer> layers(static_cast<size_t>(copies * n));
  for (size_t i = 0; i < layers.size(); ++i) {
    LoraLayer& l = layers[i];
    l.a = static_cast<const float*>(a.const_data_ptr()) + static_cast<int64_t>(i) * rank * in;
    l.b[0] = static_cast<const float*>(b.const_data_ptr()) + static_cast<int64_t>(i) * rank * outs;
    for (int m = 0; m < kMostLoraMatrices; ++m) {
      l.rank_end[m] = rank;
      l.column_end[m] = static_cast<int32_t>(outs);
    }
    l.scale[0] = 1;
  }
  const at::Tensor table =
      at::from_blob(layers.data(), {static_cast<int64_t>(layers.size() * sizeof(LoraLayer))},
                    at::kByte)
          .to(device_);
  const auto* const first = static_cast<const LoraLayer*>(table.const_data_ptr());
  std::vector<int64_t> adapters;
  for (size_t i = 0; i < layers.size(); ++i) {
    adapters.push_back(reinterpret_cast<int64_t>(first + i));
  }
  const at::Tensor placed = on_device(adapters, at::kLong);
  const auto* const of_rows = reinterpret_cast<const LoraLayer* const*>(placed.const_data_ptr());
  at::Tensor to = at::empty({n, outs}, fp32), ranks = at::empty({n, rank}, fp32);
  const auto add = [&](int64_t copy) {
    const LoraView view{of_rows + copy * n, nullptr, rank, 1};
    store_.ops().add_lora(to, x, {view, 0}, /*add=*/false, ranks);
  };
  const double took = time([&](size_t call) { add(static_cast<int64_t>(call) % copies); });
  const std::string whole =
      "lora." + name + ".rank_" + std::to_string(rank) + ".rows_" + std::to_string(n);
  put(whole, 1e6 * took, "us", share(4.0 * n * rank * static_cast<double>(in + outs), took));
  launch(device_queue(), [&] { add(0); });
  wait();
  const auto exact = [&](const at::Tensor& t) { return t.narrow(0, 0, n).to(at::kDouble); };
  const at::Tensor inner = at::matmul(exact(host_a), exact(x.cpu()).unsqueeze(2));
  const at::Tensor want = at::matmul(exact(host_b).transpose(1, 2), inner).squeeze(2);
  put_difference(whole, to.cpu().to(at::kDouble), want);
}

void Bench::loras() {
  if (store_.ops().add_lora == nullptr) return;
  const int64_t q = int64_t{shape_.heads} * shape_.head_dim;
  const int64_t kv = int64_t{shape_.kv_heads} * shape_.head_dim;
  for (const int rows : {1, 16}) {
    for (const int rank : {16, 64}) {
      lora("qkv", q + 2 * kv, shape_.hidden, rank, rows);
      lora("down", shape_.hidden, shape_.inner, rank, rows);
    }
  }
}

// `rows_each` new rows of each sequence; the last row sees `context` keys.
void Bench::attend(int sequences, int rows_each, int context) {
  const Shape& s = shape_;
  const int n = sequences * rows_each;
  const int pages_each = (context + s.page_rows - 1) / s.page_rows;
  const int64_t pages = int64_t{sequences} * pages_each;
  RowColumns columns;
  std::vector<int32_t> tables(static_cast<size_t>(pages));
  for (size_t i = 0; i < tables.size(); ++i) {
    tables[i] = static_cast<int32_t>(i * 61 % tables.size());  // repeats do no harm
  }
  for (int q = 0; q < sequences; ++q) {
    for (int r = 0; r < rows_each; ++r) {
      columns.position.push_back(context - rows_each + r);
      columns.slot.push_back(0);
      columns.table.push_back(q * pages_each);
      columns.first_key.push_back(0);
      columns.dense_end.push_back(context - rows_each + r + 1);
      columns.extra_begin.push_back(0);
      columns.extra_end.push_back(0);
      columns.prompts.push_back(0);
    }
  }
  std::vector<at::Tensor> placed;
  const auto place = [&](const std::vector<int32_t>& numbers) {
    placed.push_back(on_device(numbers, at::kInt));
    return static_cast<const int32_t*>(placed.back().const_data_ptr());
  };
  RowView view;
  view.rows = n;
  view.page_rows = s.page_rows;
  view.position = place(columns.position);
  view.table = place(columns.table);
  view.first_key = place(columns.first_key);
  view.dense_end = place(columns.dense_end);
  view.extra_begin = place(columns.extra_begin);
  view.extra_end = place(columns.extra_end);
  view.extra = place({0});
  view.pages = place(tables);
  view.most_keys = columns.most_keys();
  view.together = RowColumns::together(columns.table);
  // The size is that of KvPool's keys on every platform.
  const at::Tensor keys = random_rows({pages, s.kv_heads, s.page_rows, s.head_dim}, 3);
  const at::Tensor values = random_rows({pages, s.kv_heads, s.page_rows, s.head_dim}, 4);
  const at::Tensor qkv = random_rows({n, int64_t{s.heads + 2 * s.kv_heads} * s.head_dim}, 5);
  at::Tensor out = at::empty({n, int64_t{s.heads} * s.head_dim}, rows());
  const LayerKv kv{s.heads, s.kv_heads, s.head_dim, keys, values};
  std::vector<std::pair<at::Tensor, at::Tensor>> copies = {{keys, values}};
  const size_t layers = copies_of(2 * keys.numel() * keys.element_size());
  while (copies.size() < layers) copies.emplace_back(keys.clone(), values.clone());
  const Ops& ops = store_.ops();
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  const double took = time([&](size_t call) {
    const auto& [k, v] = copies[call % copies.size()];
    ops.attention(out, qkv, view, {s.heads, s.kv_heads, s.head_dim, k, v}, scale, {});
  });
  const double bytes = 2.0 * sequences * context * s.kv_heads * s.head_dim *
                       static_cast<double>(keys.element_size());
  const std::string name = "attention.sequences_" + std::to_string(sequences) + ".rows_" +
                           std::to_string(rows_each) + ".context_" + std::to_string(context);
  put(name, 1e6 * took, "us", share(bytes, took));

  std::vector<at::Tensor> got, want;
  for (const int row : {0, n / 2, n - 1}) {
    const int64_t first = columns.table[static_cast<size_t>(row)];
    std::vector<int64_t> table(tables.begin() + first, tables.begin() + first + pages_each);
    got.push_back(out[row].cpu().to(at::kDouble));
    want.push_back(attended(qkv, kv, on_device(table, at::kLong), row,
                            columns.dense_end[static_cast<size_t>(row)]));
  }
  put_difference(name, at::cat(got), at::cat(want));
}

// What a row attends to, in fp64: [heads * head_dim]. pages: of its keys, in order
at::Tensor Bench::attended(const at::Tensor& qkv, const LayerKv& kv, const at::Tensor& pages,
                           int row, int keys) const {
  const Shape& s = shape_;
  const auto of_heads = [&](const at::Tensor& pool, bool by_dimension) {
    at::Tensor some = pool.index_select(0, pages).cpu().to(at::kDouble);
    if (by_dimension) {
      some = some.view({-1, s.kv_heads, s.head_dim, s.page_rows}).transpose(2, 3);
    }
    some = some.permute({1, 0, 2, 3}).reshape({s.kv_heads, -1, s.head_dim});
    return some.narrow(1, 0, keys);
  };
  const at::Tensor k = of_heads(kv.keys, platform_of(device_).keys_by_dimension());
  const at::Tensor v = of_heads(kv.values, false);
  const int64_t group = s.heads / s.kv_heads;
  const at::Tensor q = qkv[row].narrow(0, 0, int64_t{s.heads} * s.head_dim).cpu().to(at::kDouble);
  const at::Tensor scores = at::matmul(q.view({s.kv_heads, group, s.head_dim}), k.transpose(1, 2)) /
                            std::sqrt(static_cast<double>(s.head_dim));
  return at::matmul(at::softmax(scores, -1), v).reshape({-1});
}

void Bench::attention() {
  for (const int context : shape_.contexts) {
    for (const int sequences : {1, 32}) attend(sequences, 1, context);
    attend(1, 8, context);
  }
}

int run(const std::vector<std::string>& args) {
  std::optional<std::string> device;
  std::optional<double> seconds, threads;
  std::vector<std::string> only;
  bool small = false;
  bool help = false;
  Flags flags;
  flags.text("device", "NAME", "cpu:0 or cuda:0 (cpu:0)", &device);
  flags.texts("only", "NAME", "ceilings, products, blocks, loras, attention; repeatable (all)",
              &only);
  flags.number("seconds", "S", "time per number (0.2)", 0.0001, 600, &seconds);
  flags.number("threads", "N", "of a CPU device (2)", 1, 1024, &threads);
  flags.toggle("small", "small shapes, to test this program", &small);
  flags.toggle("help", "this text", &help);
  const auto rest = flags.parse(args);
  const absl::StatusOr<DeviceConfig> named = parse_device(device.value_or("cpu:0"));
  if (!named.ok()) {
    std::fprintf(stderr, "--device: %s; allowed: %s\n", device->c_str(), kDeviceRule);
    return 2;
  }
  if (!rest.ok() || !rest->empty() || help) {
    std::fprintf(stderr, "%s", flags.help().c_str());
    return help ? 0 : 2;
  }
  const c10::InferenceMode inference;
  cpu::set_team_size(static_cast<int>(threads.value_or(2)));
  const auto wants = [&](const char* name) {
    return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
  };
  Bench bench(*named, small ? small_shape() : Shape{}, seconds.value_or(0.2));
  bench.ceilings();  // shares need the bandwidth
  if (wants("products")) bench.products();
  if (wants("blocks")) bench.blocks();
  if (wants("loras")) bench.loras();
  if (wants("attention")) bench.attention();
  return bench.wrong() ? 1 : 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  try {
    return tandem::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_device: %s\n", e.what());
    return 1;
  }
}
