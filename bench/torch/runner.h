// Runs batches of one shape repeatedly, on a device with one model: random or from a file.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/torch/random_model.h"
#include "engine/backend/torch/cpu/parallel.h"
#include "engine/backend/torch/device.h"
#include "engine/backend/torch/shared.h"
#include "engine/base/check.h"
#include "engine/base/config.h"
#include "engine/pass/backend.h"

namespace tandem::bench {

using Seconds = std::chrono::duration<double>;

struct Options {
  DeviceConfig device;
  int threads = 2;  // on CPU
  DType dtype = DType::kFloat32;
  DType kv_dtype = DType::kAuto;
  int page_rows = 16;
};

class Runner {
 public:
  // kv_rows: the most rows of all sequences of a batch together.
  Runner(const DecoderConfig& config, const RandomWeights& weights, const Options& options,
         int64_t kv_rows, int index = 0)
      : device_(make_device(options, index)), page_rows_(options.page_rows) {
    cpu::set_team_size(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    const absl::Status loaded =
        device_->load_decoder(kModel, "random", config, config.tie_word_embeddings,
                              weights.source(), options.dtype, page_rows_, options.kv_dtype);
    cpu::set_team_size(1);
    if (!loaded.ok()) std::fprintf(stderr, "%s\n", loaded.ToString().c_str());
    TANDEM_CHECK(loaded.ok());
    begin(kv_rows);
  }

  // The weights of a file or directory, in the type of the file. loras: paths of LoRA adapters
  Runner(const std::string& path, const Options& options, int64_t kv_rows,
         const std::vector<std::string>& loras = {})
      : device_(make_device(options, 0)), page_rows_(options.page_rows) {
    ModelConfig model;
    model.name = "model";
    model.path = path;
    model.page_rows = page_rows_;
    model.kv_dtype = options.kv_dtype;
    for (const std::string& lora : loras) model.loras.push_back({lora, lora});
    const absl::Status loaded = device_->load(kModel, model);
    if (!loaded.ok()) std::fprintf(stderr, "%s\n", loaded.ToString().c_str());
    TANDEM_CHECK(loaded.ok());
    begin(kv_rows);
  }

  // Every sequence has `past` rows and gets `rows` more. The last `reads` of them are read
  // greedily; -1: all.
  void shape(int sequences, int past, int rows, int reads = -1) {
    shape(std::vector<int>(static_cast<size_t>(sequences), past), rows, reads);
  }

  // As above, with a number of past rows per sequence.
  void shape(const std::vector<int>& pasts, int rows, int reads = -1) {
    const int first_read = reads < 0 ? 0 : rows - reads;
    pass_ = Pass();
    pass_.stage.to = layers_;
    Read read;
    read.draw = true;
    for (int i = 0; i < rows; ++i) {
      pass_.add.chain(token_in((i * 37 + 11) % vocab_));
      if (i >= first_read) read.rows.push_back(i);
    }
    pass_.reading(read);
    batch_ = Batch();
    tables_.assign(pasts.size(), {});
    int64_t next = 0;
    for (size_t s = 0; s < pasts.size(); ++s) {
      const int past = pasts[s];
      Work& w = batch_.works.emplace_back();
      w.pass = &pass_;
      w.ticket = static_cast<TicketId>(s + 1);
      w.model = kModel;
      w.cache = CacheId(static_cast<int>(s));
      w.to = layers_;
      w.count = rows;
      w.past = past;
      // As in a server, neighbours in the table are not neighbours in memory.
      const int64_t count = (past + rows + page_rows_ - 1) / page_rows_;
      std::vector<PageId>& table = tables_[s];
      for (int64_t i = 0; i < count; ++i) table.push_back(PageId((next++ * kPageStep) % pages_));
      w.pages = table;
      for (int i = first_read; i < rows; ++i) w.outputs.push_back({0, i - first_read, i, i});
    }
    TANDEM_CHECK(next <= pages_);
  }

  // Sequence i gets LoRA adapter i modulo n; 0: none. REQUIRES: called after shape()
  void adapt(int n) {
    for (size_t i = 0; i < batch_.works.size(); ++i) {
      batch_.works[i].lora = n > 0 ? LoraId(static_cast<int64_t>(i) % n) : LoraId();
    }
  }

  struct Time {
    Seconds wall{};  // from launch() to the result
    Seconds busy{};  // of the device queue
  };
  Time run() {
    std::promise<BatchResult> done;
    std::future<BatchResult> answer = done.get_future();
    const auto start = std::chrono::steady_clock::now();
    device_->launch(batch_, [&](BatchResult r) { done.set_value(std::move(r)); });
    const BatchResult result = answer.get();
    Time time{std::chrono::steady_clock::now() - start, result.busy};
    TANDEM_CHECK(result.status.ok());
    for (const WorkResult& w : result.works) TANDEM_CHECK(w.status.ok());
    return time;
  }

  int64_t weight_bytes() const { return device_->shape(kModel).weight_bytes; }
  GraphCounts graph_counts() const { return device_->graph_counts(kModel); }

 private:
  static constexpr ModelId kModel = ModelId(0);
  static constexpr int64_t kPageStep = 61;

  static std::unique_ptr<TorchDevice> make_device(const Options& options, int index) {
    DeviceConfig config = options.device;
    config.index += index;
    const bool on_cpu = config.kind == DeviceKind::kCpu;
    if (on_cpu) config.threads = options.threads;
    if (!on_cpu) config.packed_products = true;
    auto device = TorchDevice::create(config, std::make_shared<TorchShared>());
    if (!device.ok()) std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    TANDEM_CHECK(device.ok());
    return *std::move(device);
  }

  void begin(int64_t kv_rows) {
    layers_ = device_->shape(kModel).layers;
    vocab_ = device_->shape(kModel).vocab_size;
    pages_ = kv_rows / page_rows_ + 128;
    if (pages_ % kPageStep == 0) ++pages_;  // so that steps of kPageStep visit all pages
    TANDEM_CHECK(device_
                     ->allocate_pools(
                         kModel, {.page_rows = page_rows_, .pages = pages_, .frontier_pages = 1})
                     .ok());
    fill_pages();
  }

  // Fills all pages with copies of one prompt's keys and values.
  void fill_pages() {
    shape(1, 0, 16 * page_rows_);
    pages_of_prompt_ = tables_[0];
    run();
    Batch copies;
    for (int64_t p = 0; p < pages_; ++p) {
      Move m;
      m.from = {kModel, pages_of_prompt_[static_cast<size_t>(p) % pages_of_prompt_.size()], 0};
      m.to = {kModel, PageId(p), 0};
      m.rows = page_rows_;
      m.layers = layers_;
      if (m.from.page != m.to.page) copies.moves.push_back(m);
    }
    batch_ = std::move(copies);
    run();
  }

  std::unique_ptr<TorchDevice> device_;
  int layers_ = 0, vocab_ = 0, page_rows_;
  int64_t pages_ = 0;
  std::vector<std::vector<PageId>> tables_;  // of the batch, by sequence
  std::vector<PageId> pages_of_prompt_;
  Pass pass_;
  Batch batch_;
};

}  // namespace tandem::bench
