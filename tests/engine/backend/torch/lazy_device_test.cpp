// Devices on lazy queues (queue/lazy_queue.h): batches, moves between devices and readouts as on
// CUDA, with the CPU's kernels.
#include <c10/util/Exception.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/mover.h"
#include "engine/backend/torch/weights/tensor_source.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"

namespace tandem {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr PoolSize kSize = {.page_rows = 4, .pages = 24, .frontier_pages = 8};

const TinyModel& tiny() {
  static const TinyModel* const model = [] {
    DecoderConfig config = tiny_config();
    config.layers = 3;
    return new TinyModel(tiny_model(config));
  }();
  return *model;
}

Pass reading(Pass pass, int rows) {
  RowList last;
  for (int i = rows; i > 0; --i) last.push_back(static_cast<Row>(pass.add.size()) - i);
  pass.reading(all_logprobs(last, 64));
  return pass;
}

Pass text_pass(int to, int n, uint64_t seed) { return chain_pass(to, random_tokens(n, 64, seed)); }

void append(Rows& all, const Readout& readout) {
  for (auto& row : logprobs(readout)) all.push_back(std::move(row));
}

// A worker's rows, some of them between two layers, go to the main device; its pages serve another
// sequence; a tree of which a path stays; several rows are read at once.
// ready: called before the first batch.
Rows two_devices(
    const std::shared_ptr<TorchShared>& shared, const std::function<void()>& ready = [] {}) {
  Rows said;
  Driver main(tiny(), shared, 0, kSize);
  Driver worker(tiny(), shared, 1, kSize);
  ready();
  Sequence there = worker.sequence();
  worker.run(there, text_pass(3, 9, 1));
  worker.run(there, text_pass(2, 4, 2));
  Sequence aside = worker.sequence();
  append(said, worker.run(aside, reading(text_pass(3, 3, 6), 2)));
  Sequence here = main.sequence();
  main.copy(there, here);
  append(said, main.run(here, reading(text_pass(3, 2, 3), 1)));
  worker.release(there);
  Sequence next = worker.sequence();
  append(said, worker.run(next, reading(text_pass(3, 14, 4), 3)));

  Pass tree;
  tree.stage.to = 3;
  for (const Row parent : {-1, 0, 0, 2}) tree.add.add(token_in(parent + 7), parent);
  append(said, main.run(here, reading(tree, 4)));
  main.keep(here, 4, {0, 2, 3});
  append(said, main.run(here, reading(text_pass(3, 1, 5), 1)));
  return said;
}

const Rows& expected() {
  static const Rows* const rows = new Rows(two_devices(std::make_shared<TorchShared>()));
  return *rows;
}

std::shared_ptr<TorchShared> shared_of(LazyDevices& devices) {
  return std::make_shared<TorchShared>(devices.make_queue());
}

// Whether `scenario` ends with an error, or not with these rows.
template <class Scenario>
bool is_wrong(const Scenario& scenario, const Rows& rows) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter quiet(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
  const Rows got = scenario();
  return failures.size() > 0 || got != rows;
}

class LazyDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCpu)
      GTEST_SKIP() << "a CPU's kernels, whatever there is";
  }
  void TearDown() override { test_device_graphs = true; }
};

TEST_F(LazyDevice, AnswersAreTheSameInEveryOrder) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1});
    EXPECT_EQ(two_devices(shared_of(devices)), expected());
    EXPECT_EQ(devices.fault(), "");
  }
}

// A page that is saved in the batch after the one that fills it, and loaded before a pass reads it.
TEST_F(LazyDevice, PagesGoToTheHostAndBackInOrder) {
  const auto scenario = [](const std::shared_ptr<TorchShared>& shared) {
    Driver d(tiny(), shared, 0, kSize);
    Sequence fresh = d.sequence();
    d.run(fresh, text_pass(3, 8, 1));
    Sequence restored = d.load(d.save(fresh), 8);
    Rows said;
    append(said, d.run(restored, reading(text_pass(3, 2, 3), 1)));
    append(said, d.run(fresh, reading(text_pass(3, 2, 3), 1)));
    return said;
  };
  const Rows rows = scenario(std::make_shared<TorchShared>());
  EXPECT_EQ(rows[0], rows[1]);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1});
    EXPECT_EQ(scenario(shared_of(devices)), rows);
    EXPECT_EQ(devices.fault(), "");
  }
}

// Without peer access, the host waits for the other device and copies through its memory.
TEST_F(LazyDevice, AnswersAreTheSameWithoutPeers) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1, .peers = false});
    EXPECT_EQ(two_devices(shared_of(devices)), expected());
    EXPECT_EQ(devices.fault(), "");
    EXPECT_EQ(devices.calls()[static_cast<size_t>(QueueCall::kWait)], 0);
  }
}

// Reads get answers where these suffice, and logits otherwise.
TEST_F(LazyDevice, ReadsAreAnsweredAsOnTheHost) {
  Read greedy;
  greedy.rows = {6};
  greedy.draw = greedy.max_prob = greedy.logprob = true;
  greedy.top = 3;
  Read drawn = greedy;
  drawn.warp.temperature = 0.9f;
  drawn.warp.seed = 5;
  Read scored;
  for (Row r = 0; r < 7; ++r) scored.rows.push_back(r);
  scored.score = {1, 2, 3, 4, 5, 6, 7};
  scored.logprob = true;
  Read cut = drawn;
  cut.warp.top_p = 0.7f;
  cut.warp.min_p = 0.01f;
  Read processed = cut;
  processed.warp.top_k = 30;
  Processors p;
  p.prompt_tokens = 3;
  p.repetition_penalty = 1.2f;
  p.frequency_penalty = 0.4f;
  p.bias = {{4, 2.5f}, {9, -std::numeric_limits<float>::infinity()}};
  p.min_new_tokens = 9;
  p.ends = {11};
  processed.warp.processors = std::make_shared<const Processors>(p);
  Read typical = processed;  // not for devices
  typical.warp.typical_p = 0.8f;
  const auto run = [&](const std::shared_ptr<TorchShared>& shared) {
    Driver d(tiny(), shared, 0, kSize);
    std::vector<float> said;
    for (const auto& reads : {std::vector<Read>{greedy, drawn, scored},
                              {drawn},
                              {cut, greedy},
                              {processed, cut},
                              {typical, processed}}) {
      Sequence s = d.sequence();
      Pass pass = text_pass(3, 7, 1);
      for (const Read& read : reads) pass.reading(read);
      for (const Out& o : d.run(s, pass).row) {
        for (const float x : {static_cast<float>(o.token), static_cast<float>(o.argmax), o.max_prob,
                              o.nll, o.logprob, o.score_logprob}) {
          said.push_back(std::isnan(x) ? -1 : x);
        }
        for (const Ranked& r : o.top) said.push_back(r.logprob + static_cast<float>(r.token));
      }
      d.release(s);
    }
    return said;
  };
  LazyDevices devices({});
  EXPECT_EQ(run(shared_of(devices)), run(std::make_shared<TorchShared>()));
  EXPECT_EQ(devices.fault(), "");
}

// Each call of a queue left out, one at a time. Marks and waits between queues are another test's:
// while each batch is waited for at its end, nothing hangs on them.
TEST_F(LazyDevice, EveryCallThatIsLeftOutIsSeen) {
  LazyDevices clean({});
  std::array<int, kQueueCalls> before{};
  EXPECT_EQ(two_devices(shared_of(clean), [&] { before = clean.calls(); }), expected());
  std::map<std::string, int> found, nothing_to_do;
  for (const QueueCall call : {QueueCall::kCopy, QueueCall::kLaunch, QueueCall::kSynchronize}) {
    const auto kind = static_cast<size_t>(call);
    for (int n = 0; n < clean.calls()[kind] - before[kind]; ++n) {
      LazyDevices devices({});
      const auto ready = [&] { devices.skip(call, n); };
      const bool wrong =
          is_wrong([&] { return two_devices(shared_of(devices), ready); }, expected());
      EXPECT_EQ(wrong, devices.skipped_something()) << name_of(call) << " " << n;
      ++(wrong ? found : nothing_to_do)[name_of(call)];
    }
  }
  for (const auto& [call, n] : found) RecordProperty(call + " found", n);
  EXPECT_EQ(nothing_to_do.size(), 1u);  // synchronize, behind a readback
}

// A worker's batch that the host does not wait for, as device queues run it.
Rows pulled(LazyDevices& devices, bool by_events) {
  const auto shared = shared_of(devices);
  Driver main(tiny(), shared, 0, kSize);
  Driver worker(tiny(), shared, 1, kSize);
  if (!by_events) devices.skip_all(QueueCall::kWait, 0);
  devices.skip_all(QueueCall::kSynchronize, 1);
  Sequence there = worker.sequence();
  worker.run(there, text_pass(3, 9, 1));
  Sequence here = main.sequence();
  main.copy(there, here);
  Rows said;
  append(said, main.run(here, reading(text_pass(3, 2, 3), 1)));
  return said;
}

TEST_F(LazyDevice, EventsOrderRowsWithoutWaits) {
  LazyDevices usual({});
  Rows want;
  {
    Driver one(tiny(), shared_of(usual), 0, kSize);
    Sequence s = one.sequence();
    one.run(s, text_pass(3, 9, 1));
    append(want, one.run(s, reading(text_pass(3, 2, 3), 1)));
  }
  for (uint64_t seed = 0; seed < 4; ++seed) {
    LazyDevices devices({.seed = seed, .eager = seed % 2 == 1});
    EXPECT_EQ(pulled(devices, true), want);
    EXPECT_EQ(devices.fault(), "");
  }
  LazyDevices devices({});
  EXPECT_TRUE(is_wrong([&] { return pulled(devices, false); }, want)) << "a missing event";
}

// Pages are freed when the batch that reads them is reported as done.
TEST_F(LazyDevice, ACopyOfFreedPagesIsSeen) {
  const auto copied = [](LazyDevices& devices, bool too_early) {
    const auto shared = shared_of(devices);
    Driver main(tiny(), shared, 0, kSize);
    Driver worker(tiny(), shared, 1, kSize);
    Sequence there = worker.sequence();
    worker.run(there, text_pass(3, 12, 1));
    Sequence here = main.sequence();
    main.copy(there, here);
    if (too_early) devices.skip(QueueCall::kSynchronize, 0);
    main.run_moves();
    worker.release(there);
    Sequence next = worker.sequence();
    worker.run(next, text_pass(3, 12, 8));
    Rows said;
    append(said, main.run(here, reading(text_pass(3, 2, 3), 1)));
    return said;
  };
  LazyDevices usual({});
  const Rows want = copied(usual, false);
  EXPECT_EQ(usual.fault(), "");
  LazyDevices devices({});
  EXPECT_TRUE(is_wrong([&] { return copied(devices, true); }, want));
}

TEST_F(LazyDevice, PoolsAreZeroed) {
  for (const bool skipped : {false, true}) {
    LazyDevices devices({});
    const DeviceQueue device_queue(devices.queue());
    if (skipped) devices.skip(QueueCall::kZero, 1);
    const KvPool pool({.layers = 2, .kv_heads = 2, .head_dim = 4, .hidden_size = 8},
                      {.page_rows = 4, .pages = 3, .frontier_pages = 2, .values = 3}, at::kCPU, 1,
                      &device_queue);
    device_queue.finish();
    bool zero = true;
    for (const at::Tensor& t : {pool.keys, pool.values, pool.frontier, pool.hidden}) {
      ASSERT_GT(t.nbytes(), 0u);
      for (const std::byte b :
           devices.look(static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes())) {
        zero = zero && b == std::byte{0};
      }
    }
    EXPECT_EQ(zero, !skipped);
  }
}

TEST_F(LazyDevice, MovesThatLeaveTheirPageMoveNothing) {
  LazyDevices devices({});
  const DeviceQueue device_queue(devices.queue());
  const KvPool pool({.layers = 1, .kv_heads = 1, .head_dim = 4, .hidden_size = 8},
                    {.page_rows = 4, .pages = 3}, at::kCPU, 0, &device_queue);
  Mover mover(&device_queue);
  std::vector<Move> moves(2);
  moves[0].layers = moves[1].layers = 1;
  for (Move& m : moves) {
    m.from.page = PageId(0);
    m.to.page = PageId(1);
  }
  moves[1].to.slot = 4;
  const int before = devices.calls()[static_cast<size_t>(QueueCall::kLaunch)];
  EXPECT_EQ(mover.put(moves, [&](ModelId) { return &pool; }).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(mover.put(moves, [](ModelId) { return nullptr; }).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(devices.calls()[static_cast<size_t>(QueueCall::kLaunch)], before);
  moves[1].to.slot = 3;
  EXPECT_TRUE(mover.put(moves, [&](ModelId) { return &pool; }).ok());
  device_queue.finish();
}

// Statuses of works whose device has an error in the middle of things.

[[noreturn]] void illegal_address() {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: illegal address");
}

absl::Status status_of(Driver& on, Sequence& s, const Pass& pass) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter quiet(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
  const Driver::Item item{&s, &pass};
  return on.run({&item, 1})[0].status;
}

TEST_F(LazyDevice, AShortageEndsTheBatchAndLosesNothing) {
  const Pass pass = reading(text_pass(3, 5, 1), 1);
  for (const bool graphs : {false, true}) {
    test_device_graphs = graphs;
    LazyDevices devices({});
    Driver d(tiny(), shared_of(devices), 0, kSize);
    Rows want;
    for (int i = 0; i < 3; ++i) {  // of which the third is replayed
      Sequence s = d.sequence();
      want = logprobs(d.run(s, pass));
      d.release(s);
    }
    const QueueCall done = graphs ? QueueCall::kReplay : QueueCall::kLaunch;
    for (const QueueCall call : {QueueCall::kCopy, done, QueueCall::kSynchronize}) {
      devices.fail(call, 0, [] { throw std::bad_alloc(); });
      Sequence s = d.sequence();
      EXPECT_EQ(status_of(d, s, pass).code(), absl::StatusCode::kResourceExhausted);
      d.release(s);
      Sequence again = d.sequence();
      EXPECT_EQ(logprobs(d.run(again, pass)), want) << name_of(call);
      d.release(again);
    }
    EXPECT_EQ(devices.fault(), "");
  }
}

TEST_F(LazyDevice, ThatIsLostBetweenTwoBatchesHarmsNoOther) {
  LazyDevices devices({});
  const auto shared = shared_of(devices);
  Driver main(tiny(), shared, 0, kSize);
  Driver worker(tiny(), shared, 1, kSize);
  const Pass pass = reading(text_pass(3, 5, 1), 1);
  Sequence there = worker.sequence();
  Sequence here = main.sequence();
  const Rows want = logprobs(worker.run(there, pass));
  EXPECT_EQ(logprobs(main.run(here, pass)), want);
  devices.fail(QueueCall::kCopy, 0, illegal_address, /*for_ever=*/true);
  for (int i = 0; i < 3; ++i) {
    Sequence s = worker.sequence();
    const absl::Status status = status_of(worker, s, pass);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("illegal address"), std::string::npos) << status;
    worker.release(s);
    main.release(here);
    EXPECT_EQ(logprobs(main.run(here, pass)), want);
  }
}

// An illegal access is reported by the next call: any call of a batch, or the wait for it.
TEST_F(LazyDevice, AnIllegalAccessIsALossWhereverItIsReported) {
  test_device_graphs = false;  // replays: step_graphs_test.cpp
  const Pass pass = reading(text_pass(3, 5, 1), 1);
  for (const QueueCall call :
       {QueueCall::kCopy, QueueCall::kLaunch, QueueCall::kRecord, QueueCall::kSynchronize}) {
    for (const int n : {0, 1}) {
      LazyDevices devices({});
      Driver d(tiny(), shared_of(devices), 0, kSize);
      Sequence s = d.sequence();
      devices.fail(call, n, illegal_address, /*for_ever=*/true);
      for (int batch = 0; batch < 2; ++batch) {
        const absl::Status status = status_of(d, s, pass);
        const bool in_time = batch > 0 || call != QueueCall::kRecord || n == 0;  // one a batch
        EXPECT_EQ(status.code(), in_time ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk)
            << name_of(call) << " " << n << ": " << status;
      }
    }
  }
}

TEST_F(LazyDevice, WithoutItsQueueIsNotMade) {
  const auto made = [](auto error) {
    const auto shared = std::make_shared<TorchShared>(
        [error](const DeviceConfig&) -> std::unique_ptr<Queue> { throw error(); });
    return TorchDevice::create({.threads = 1}, shared).status();
  };
  const auto of_cuda = [](int code, const char* what) {
    return
        [code, what] { return c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, what); };
  };
  EXPECT_EQ(made(of_cuda(2, "out of memory")).code(), absl::StatusCode::kResourceExhausted);
  const absl::Status busy = made(of_cuda(46, "all CUDA-capable devices are busy"));
  EXPECT_EQ(busy.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(busy.message().find("cpu:0"), std::string::npos) << busy;
  EXPECT_NE(busy.message().find("busy"), std::string::npos) << busy;
}

// A head in blocks multiplies 64 rows at a time, instead of being unpacked; a dense head all rows.
TEST_F(LazyDevice, RowsAreReadByAsManyAsTheHeadTakes) {
  DecoderConfig config = tiny_config();
  config.layers = 1;
  TinyModel model = tiny_model(config);
  const auto read = [&](const std::shared_ptr<TorchShared>& shared, const LazyDevices* devices,
                        int rows) {
    Driver d(model, shared, 0, {.page_rows = 4, .pages = 60, .frontier_pages = 4}, /*threads=*/1,
             CpuKernels::kAten);
    Sequence s = d.sequence();
    const auto waits = [&] {
      return devices ? devices->calls()[static_cast<size_t>(QueueCall::kSynchronize)] : 0;
    };
    const int before = waits();
    Rows said = logprobs(d.run(s, reading(text_pass(1, rows, 1), rows)));
    return std::pair(waits() - before, std::move(said));
  };
  const auto waits = [&](DType dtype, int rows) {
    model.dtype = dtype;
    LazyDevices devices({});
    const auto [waited, said] = read(shared_of(devices), &devices, rows);
    EXPECT_EQ(said.size(), static_cast<size_t>(rows));
    EXPECT_EQ(said, read(std::make_shared<TorchShared>(), nullptr, rows).second);
    return waited;
  };
  const int once = waits(DType::kFloat32, 129);
  EXPECT_EQ(waits(DType::kInt4, 64), once);
  EXPECT_EQ(waits(DType::kInt4, 65), once + 1);
  EXPECT_EQ(waits(DType::kInt4, 129), once + 2);
}

// Tensors of which the last does not fit into the device's memory.
class TooMany final : public TensorSource {
 public:
  explicit TooMany(int room) : all_(tiny().tensors), room_(room) {}

  const TensorView* find(const std::string& name) const override {
    if (room_-- == 0) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "out of memory");
    return all_.find(name);
  }
  std::vector<std::string> names() const override { return all_.names(); }
  const std::string& where() const override { return all_.where(); }

 private:
  const TensorMap all_;
  mutable int room_;
};

TEST_F(LazyDevice, WithTooLittleMemoryForWeightsSaysSoAndServesItsOthers) {
  LazyDevices devices({});
  Driver d(tiny(), shared_of(devices), 0, kSize);
  const Pass pass = reading(text_pass(3, 5, 1), 1);
  Sequence before = d.sequence();
  const Rows want = logprobs(d.run(before, pass));
  for (const int room : {0, 7, 20}) {
    const absl::Status status =
        d.device().load_decoder(ModelId(801), "second", tiny().config, false, TooMany(room),
                                DType::kFloat64, 4, DType::kAuto, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(status.message().find("second"), std::string::npos) << status;
    EXPECT_FALSE(d.device().allocate_pools(ModelId(801), kSize).ok());
    d.release(before);
    EXPECT_EQ(logprobs(d.run(before, pass)), want);
  }
}

TEST_F(LazyDevice, WithTooLittleMemoryForPoolsSaysSo) {
  LazyDevices devices({.bytes = size_t{1} << 20});
  const auto device = *TorchDevice::create({.threads = 1}, shared_of(devices));
  ASSERT_TRUE(tiny().load_into(*device, ModelId(800), 4).ok());
  PoolSize size = kSize;
  size.pages = 4000;
  EXPECT_EQ(device->allocate_pools(ModelId(800), size).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device->allocate_pools(ModelId(800), kSize).ok());
}

}  // namespace
}  // namespace tandem
