// A minimal scheduler for tests: sequences with explicit page tables.
//
// Runs on test_device(). Pages are allocated in shuffled order, so that a kernel that confuses rows
// and slots fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/torch/device.h"
#include "engine/backend/torch/shared.h"
#include "engine/pass/backend.h"
#include "tests/engine/backend/torch/test_device.h"
#include "tests/engine/backend/torch/tiny_model.h"

namespace tandem {

// The cache of one sequence on one model.
struct Sequence {
  ModelId model;
  CacheId id;
  LoraId lora;  // of all its rows
  std::vector<PageId> pages, frontier_pages;
  std::vector<int> done;  // layers done, by cache row

  int rows() const { return static_cast<int>(done.size()); }
};

// A device with one model.
class Driver {
 public:
  explicit Driver(const TinyModel& tiny, std::shared_ptr<TorchShared> shared = test_shared(),
                  int index = 0,
                  PoolSize size = {.page_rows = 4, .pages = 600, .frontier_pages = 200},
                  int threads = 1, CpuKernels kernels = CpuKernels::kOwn);
  explicit Driver(const ModelConfig& config,
                  PoolSize size = {.page_rows = 4, .pages = 200, .frontier_pages = 50},
                  std::shared_ptr<TorchShared> shared = test_shared(), int index = 0,
                  CpuKernels kernels = CpuKernels::kOwn);
  // Of a Hugging Face directory.
  explicit Driver(const std::string& directory, int page_rows = 16, int64_t pages = 400);

  TorchDevice& device() { return *device_; }
  const ModelShape& shape() const { return device_->shape(model_); }
  GraphCounts graph_counts() const { return device_->graph_counts(model_); }
  ModelId model() const { return model_; }
  int layers() const { return shape().layers; }

  Sequence sequence();
  // Of the model's encoder, whose rows another one's passes read: Item::memory.
  Sequence memory();
  void release(Sequence& s);  // gives its pages back

  // Added rows [first, first + count) of a pass on a sequence; count -1: all. A sequence's rows
  // count as there once this is launched.
  struct Item {
    Sequence* sequence = nullptr;
    const Pass* pass = nullptr;
    int first = 0;
    int count = -1;
    TicketId ticket = 0;  // 0: a new one
    int first_value = 0;  // hidden output o goes to place first_value + o of the pool
    std::vector<Work::Embed> embeds = {};  // where its kEmbed rows lie
    const Sequence* memory = nullptr;
    std::atomic<bool>* late = nullptr;
  };
  // All in one batch, so of one model, with the moves that wait. results: by item.
  std::vector<WorkResult> run(std::span<const Item> items);
  // Batches that are all launched before the device queue begins the first. seen: called when the
  // first one is done. results: by batch.
  std::vector<BatchResult> run_chain(
      std::span<const std::vector<Item>> batches, const std::function<void()>& seen = [] {});
  // One pass alone, in chunks of at most `chunk` rows (its tree must be a chain then); the answers
  // of all chunks. Fails the test if the work failed.
  Readout run(Sequence& s, const Pass& pass, int chunk = 0, TicketId ticket = 0);

  // Of the last `added` rows of the sequence those in `path` (ascending, counted from 0) stay.
  // Their bytes move with the next batch.
  void keep(Sequence& s, int added, const std::vector<int>& path);
  void truncate(Sequence& s, int rows);
  // Copies all rows of another device's sequence into `to`, which is empty.
  void copy(const Sequence& from, Sequence& to);
  void run_moves() { run(std::span<const Item>{}); }
  // The bytes of the sequence's pages, as Move::kSave leaves them.
  std::vector<std::byte> save(const Sequence& s);
  // A sequence of these pages, with `rows` rows of all layers.
  Sequence load(std::vector<std::byte> pages, int rows);

  static TicketId new_ticket();

 private:
  void set_up(const PoolSize& size);
  Work lower(const Item& item);
  void grow(Sequence& s, int rows, bool frontier);
  void move_row(Store store, const Sequence& from, int from_row, const Sequence& to, int to_row,
                int layers);
  BatchResult launch(const Batch& batch);

  std::shared_ptr<TorchShared> shared_;
  std::unique_ptr<TorchDevice> device_;
  ModelId model_, encoder_;
  PoolSize size_;
  std::vector<PageId> free_, free_frontier_, free_memory_;
  std::vector<Move> moves_;
  std::mt19937 random_{7};
  int caches_ = 0;
};

// Passes.
Pass chain_pass(int to, std::span<const Token> tokens);
Pass source_pass(int to, std::span<const Token> tokens);  // an encoder's
Read all_logprobs(RowList rows, int vocab);  // log-softmax of all tokens, and the argmax

// [rows][vocab] of a readout of all_logprobs, by token.
std::vector<std::vector<float>> logprobs(const Readout& readout);

// Expects rows of numbers that are as equal as the device promises: bit for bit, or up to
// `rounding`.
void expect_row(const std::vector<float>& got, const std::vector<float>& want,
                double rounding = rounding_of(DType::kFloat64));
void expect_rows(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& want,
                 double rounding = rounding_of(DType::kFloat64));

}  // namespace tandem
