#include "tests/engine/backend/torch/driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>

namespace tandem {
namespace {

std::atomic<int> next_model{0};

template <class T>
void shuffle_pages(std::vector<PageId>& free, int64_t n, T& random) {
  for (int64_t i = 0; i < n; ++i) free.push_back(PageId(i));
  std::shuffle(free.begin(), free.end(), random);
}

}  // namespace

Driver::Driver(const TinyModel& tiny, std::shared_ptr<TorchShared> shared, int index, PoolSize size,
               int threads, CpuKernels kernels)
    : shared_(std::move(shared)), model_(next_model++) {
  auto device = TorchDevice::create(test_device(index, threads, kernels), shared_);
  EXPECT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
  const absl::Status loaded = tiny.load_into(*device_, model_, size.page_rows);
  EXPECT_TRUE(loaded.ok()) << loaded;
  set_up(size);
}

Driver::Driver(const ModelConfig& config, PoolSize size, std::shared_ptr<TorchShared> shared,
               int index, CpuKernels kernels)
    : shared_(std::move(shared)), model_(next_model++) {
  auto device = TorchDevice::create(test_device(index, 1, kernels), shared_);
  EXPECT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
  ModelConfig sized = config;
  sized.page_rows = size.page_rows;
  std::vector<DeviceConfig> shards;
  for (size_t i = 0; i < config.shards.size(); ++i) {
    shards.push_back(test_device(static_cast<int>(i)));
  }
  const absl::Status loaded = device_->load(model_, sized, {}, shards);
  EXPECT_TRUE(loaded.ok()) << loaded;
  if (shape().reads_memory) {
    encoder_ = ModelId(next_model++);
    const absl::Status encoder = device_->load_encoder(encoder_, model_);
    EXPECT_TRUE(encoder.ok()) << encoder;
  }
  set_up(size);
}

Driver::Driver(const std::string& directory, int page_rows, int64_t pages)
    : Driver(ModelConfig{.name = "golden", .path = directory, .dtype = DType::kFloat32},
             {.page_rows = page_rows, .pages = pages, .frontier_pages = 0}) {}

void Driver::set_up(const PoolSize& size) {
  size_ = size;
  const absl::Status allocated = device_->allocate_pools(model_, size);
  EXPECT_TRUE(allocated.ok()) << allocated;
  shuffle_pages(free_, size.pages, random_);
  shuffle_pages(free_frontier_, size.frontier_pages, random_);
  if (!encoder_.valid()) return;
  const absl::Status memory = device_->allocate_pools(encoder_, size);
  EXPECT_TRUE(memory.ok()) << memory;
  shuffle_pages(free_memory_, size.pages, random_);
}

TicketId Driver::new_ticket() {
  static std::atomic<TicketId> next{1};
  return next++;
}

Sequence Driver::sequence() {
  Sequence s;
  s.model = model_;
  s.id = CacheId(caches_++);
  return s;
}

Sequence Driver::memory() {
  Sequence s = sequence();
  s.model = encoder_;
  return s;
}

void Driver::release(Sequence& s) {
  const bool encoded = s.model == encoder_;
  truncate(s, 0);
  s = encoded ? memory() : sequence();
}

void Driver::grow(Sequence& s, int rows, bool frontier) {
  const auto pages = static_cast<size_t>((rows + size_.page_rows - 1) / size_.page_rows);
  std::vector<PageId>& free = s.model == encoder_ ? free_memory_ : free_;
  while (s.pages.size() < pages) {
    s.pages.push_back(free.back());
    free.pop_back();
  }
  while (frontier && s.frontier_pages.size() < pages) {
    s.frontier_pages.push_back(free_frontier_.back());
    free_frontier_.pop_back();
  }
}

Work Driver::lower(const Item& item) {
  Sequence& s = *item.sequence;
  const Pass& pass = *item.pass;
  Work w;
  w.pass = &pass;
  w.ticket = item.ticket != 0 ? item.ticket : new_ticket();
  w.model = s.model;
  w.lora = s.lora;
  w.cache = s.id;
  if (item.memory != nullptr) {
    w.memory = item.memory->id;
    w.memory_model = item.memory->model;
    w.memory_pages = item.memory->pages;
    w.memory_rows = item.memory->rows();
  }
  w.to = pass.stage.to;
  w.first = item.first;
  w.count = item.count < 0 ? static_cast<int>(pass.add.size()) - item.first : item.count;
  w.last = w.first + w.count == static_cast<int>(pass.add.size());
  while (w.past < s.rows() && s.done[static_cast<size_t>(w.past)] >= w.to) ++w.past;
  w.frontier.assign(s.done.begin() + w.past, s.done.end());
  w.save_frontier = w.to < layers();
  const int before = s.rows();
  grow(s, before + w.count, w.save_frontier);
  w.pages = s.pages;
  w.frontier_pages = s.frontier_pages;
  w.embeds = item.embeds;
  w.late = item.late;
  int out = 0;
  for (size_t r = 0; r < pass.read.size(); ++r) {
    for (size_t i = 0; i < pass.read[r].rows.size(); ++i, ++out) {
      const Row row = pass.read[r].rows[i];
      int run_row = -1;
      if (row >= w.first && row < w.first + w.count) {
        run_row = w.frontier_rows() + row - w.first;
      } else if (row < 0 && w.first == 0) {
        run_row = before + row - w.past;
      }
      if (run_row < 0) continue;
      w.outputs.push_back({static_cast<int>(r), static_cast<int>(i), run_row, out, PageId()});
      if (pass.read[r].hidden) w.outputs.back().value = PageId(item.first_value + out);
    }
  }
  std::fill(s.done.begin() + w.past, s.done.end(), w.to);
  s.done.insert(s.done.end(), static_cast<size_t>(w.count), w.to);
  return w;
}

std::vector<std::byte> Driver::save(const Sequence& s) {
  const auto bytes = static_cast<size_t>(shape().page_bytes);
  std::vector<std::byte> host(s.pages.size() * bytes);
  for (size_t i = 0; i < s.pages.size(); ++i) {
    Move& m = moves_.emplace_back();
    m.kind = Move::kSave;
    m.from = {s.model, s.pages[i], 0};
    m.host = host.data() + i * bytes;
  }
  run_moves();
  return host;
}

Sequence Driver::load(std::vector<std::byte> pages, int rows) {
  const auto bytes = static_cast<size_t>(shape().page_bytes);
  Sequence s = sequence();
  grow(s, rows, /*frontier=*/false);
  EXPECT_EQ(pages.size(), s.pages.size() * bytes);
  for (size_t i = 0; i < s.pages.size(); ++i) {
    Move& m = moves_.emplace_back();
    m.kind = Move::kLoad;
    m.to = {s.model, s.pages[i], 0};
    m.host = pages.data() + i * bytes;
  }
  run_moves();
  s.done.assign(static_cast<size_t>(rows), layers());
  return s;
}

BatchResult Driver::launch(const Batch& batch) {
  std::promise<BatchResult> done;
  device_->launch(batch, [&](BatchResult r) { done.set_value(std::move(r)); });
  return done.get_future().get();
}

std::vector<WorkResult> Driver::run(std::span<const Item> items) {
  Batch batch;
  batch.moves = std::exchange(moves_, {});
  for (const Item& item : items) batch.works.push_back(lower(item));
  BatchResult result = launch(batch);
  EXPECT_TRUE(result.status.ok()) << result.status;
  return std::move(result.works);
}

std::vector<BatchResult> Driver::run_chain(std::span<const std::vector<Item>> batches,
                                           const std::function<void()>& seen) {
  std::deque<Batch> all(batches.size() + 1);
  std::promise<void> launched, done;
  std::vector<BatchResult> results;
  device_->launch(all[0], [&](const BatchResult&) { launched.get_future().wait(); });
  all[1].moves = std::exchange(moves_, {});
  for (size_t i = 0; i < batches.size(); ++i) {
    Batch& batch = all[i + 1];
    batch.behind = i > 0;
    for (const Item& item : batches[i]) batch.works.push_back(lower(item));
    device_->launch(batch, [&, i](BatchResult r) {
      if (i == 0) seen();
      results.push_back(std::move(r));
      if (results.size() == batches.size()) done.set_value();
    });
  }
  launched.set_value();
  done.get_future().wait();
  return results;
}

Readout Driver::run(Sequence& s, const Pass& pass, int chunk, TicketId ticket) {
  const int n = static_cast<int>(pass.add.size());
  if (chunk <= 0) chunk = std::max(1, n);
  if (ticket == 0) ticket = new_ticket();
  Readout all;
  std::vector<std::vector<Ranked>> tops;
  int first = 0;
  do {
    const int count = std::min(chunk, n - first);
    const Item item{&s, &pass, first, count, ticket};
    std::vector<WorkResult> results = run({&item, 1});
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    all.accepted += results[0].readout.accepted;
    for (Out& o : results[0].readout.row) {
      tops.emplace_back(o.top.begin(), o.top.end());
      all.row.push_back(o);
    }
    first += count;
  } while (first < n);
  for (const auto& t : tops) all.ranked.insert(all.ranked.end(), t.begin(), t.end());
  size_t at = 0;
  for (size_t i = 0; i < tops.size(); at += tops[i].size(), ++i) {
    all.row[i].top = {all.ranked.data() + at, tops[i].size()};
  }
  return all;
}

void Driver::move_row(Store store, const Sequence& from, int from_row, const Sequence& to,
                      int to_row, int layers) {
  const auto place = [&](const Sequence& s, int row) {
    const auto& pages = store == Store::kKv ? s.pages : s.frontier_pages;
    return Move::Place{s.model, pages[static_cast<size_t>(row / size_.page_rows)],
                       row % size_.page_rows};
  };
  Move m;
  m.store = store;
  m.from = place(from, from_row);
  m.to = place(to, to_row);
  m.layers = layers;
  moves_.push_back(m);
}

void Driver::keep(Sequence& s, int added, const std::vector<int>& path) {
  const int base = s.rows() - added;
  for (size_t i = 0; i < path.size(); ++i) {
    const int from = base + path[i];
    const int to = base + static_cast<int>(i);
    if (from == to) continue;
    const int layers = s.done[static_cast<size_t>(from)];
    move_row(Store::kKv, s, from, s, to, layers);
    if (layers < this->layers()) move_row(Store::kFrontier, s, from, s, to, 0);
  }
  s.done.resize(static_cast<size_t>(base) + path.size());
}

void Driver::truncate(Sequence& s, int rows) {
  s.done.resize(static_cast<size_t>(rows));
  const auto pages = static_cast<size_t>((rows + size_.page_rows - 1) / size_.page_rows);
  std::vector<PageId>& free = s.model == encoder_ ? free_memory_ : free_;
  for (; s.pages.size() > pages; s.pages.pop_back()) free.push_back(s.pages.back());
  for (; s.frontier_pages.size() > pages; s.frontier_pages.pop_back()) {
    free_frontier_.push_back(s.frontier_pages.back());
  }
}

void Driver::copy(const Sequence& from, Sequence& to) {
  grow(to, from.rows(), !from.frontier_pages.empty());
  to.done = from.done;
  for (int r = 0; r < from.rows(); ++r) {
    const int layers = from.done[static_cast<size_t>(r)];
    move_row(Store::kKv, from, r, to, r, layers);
    if (layers < this->layers()) move_row(Store::kFrontier, from, r, to, r, 0);
  }
}

Pass chain_pass(int to, std::span<const Token> tokens) {
  Pass p;
  p.stage.to = to;
  for (const Token t : tokens) p.add.chain(token_in(t));
  return p;
}

Pass source_pass(int to, std::span<const Token> tokens) {
  Pass p = chain_pass(to, tokens);
  p.see = See::kAll;
  return p;
}

Read all_logprobs(RowList rows, int vocab) {
  Read r;
  r.rows = std::move(rows);
  r.top = vocab;
  r.logprob = true;
  return r;
}

std::vector<std::vector<float>> logprobs(const Readout& readout) {
  std::vector<std::vector<float>> all;
  for (const Out& o : readout.row) {
    std::vector<float>& row = all.emplace_back(o.top.size());
    for (const Ranked& r : o.top) row[static_cast<size_t>(r.token)] = r.logprob;
  }
  return all;
}

void expect_row(const std::vector<float>& got, const std::vector<float>& want, double rounding) {
  if (test_device_keeps_bits()) {
    ASSERT_EQ(got, want);
    return;
  }
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], rounding) << i;
}

void expect_rows(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& want, double rounding) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t r = 0; r < want.size(); ++r) {
    SCOPED_TRACE(r);
    expect_row(got[r], want[r], rounding);
  }
}

}  // namespace tandem
