// What a round of each method asks of a device's queue, as on CUDA: copies, replays, waits of the
// host, and bytes that come back. Counted on a CPU device behind a lazy queue. A batch runs when
// the loop has no more to launch, so the counts do not depend on time.
#ifdef TANDEM_WITH_TORCH
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/backend/torch/device.h"
#include "engine/decode/autoregressive.h"
#include "engine/decode/bild.h"
#include "engine/decode/bita.h"
#include "engine/decode/pacing/acceptance_stats.h"
#include "engine/decode/speculative.h"
#include "engine/host/methods/compile.h"
#include "engine/host/methods/registry.h"
#include "engine/sched/loop.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/backend/torch/queue/lazy_queue.h"
#include "tests/engine/host/tiny_directory.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

constexpr ModelId kLarge{0}, kSmall{1};
constexpr int kVocab = 32000;
constexpr int kMasks = 3, kCandidates = 5;
constexpr int kPrompt = 8;
constexpr int kRounds = 3;

// As on an H200 (docs/reports/cuda_h200.md): a row of a 7B shape takes 3.83 ms, and 0.07 ms more
// for each further row. The small model takes the most that docs/gpu_check.md expects of a 1B
// shape.
Duration time_on_gpu(const Batch& batch) {
  int rows = 0;
  for (const Work& w : batch.works) rows += static_cast<int>(w.frontier.size()) + w.count;
  const bool small = !batch.works.empty() && batch.works.front().model == kSmall;
  return std::chrono::microseconds((small ? 2000 : 3760) + 70 * rows);
}

// Holds batches until the loop has launched all that it can.
class Held final : public Backend {
 public:
  explicit Held(Backend* device) : device_(device) {}
  const ModelShape& shape(ModelId model) const override { return device_->shape(model); }
  const PoolSize& pool(ModelId model) const override { return device_->pool(model); }
  void launch(const Batch& batch, Done done) override {
    for (const Work& w : batch.works) rounds_ += w.model == kLarge ? 1 : 0;
    held_.emplace_back(&batch, std::move(done));
  }

  // Launches them before the device begins the first, and waits for all. False: there are none.
  bool run() {
    if (held_.empty()) return false;
    const Batch none;
    std::promise<void> launched, ended;
    const auto batches = std::exchange(held_, {});
    size_t left = batches.size();
    device_->launch(none, [&](const BatchResult&) { launched.get_future().wait(); });
    for (const auto& [batch, done] : batches) {
      device_->launch(*batch, [&left, &ended, &done, &batch](BatchResult result) {
        EXPECT_TRUE(result.status.ok()) << result.status;
        result.busy = time_on_gpu(*batch);
        done(std::move(result));
        if (--left == 0) ended.set_value();
      });
    }
    launched.set_value();
    ended.get_future().wait();
    return true;
  }
  int rounds() const { return rounds_; }  // passes of the large model

 private:
  Backend* const device_;
  std::vector<std::pair<const Batch*, Done>> held_;
  int rounds_ = 0;
};

class Listener final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override {
    for (const Emitted& e : more) tokens.push_back(e.token);
  }
  void on_end(const SequenceEnd& e) override {
    status = e.status;
    stats = e.stats;
  }

  std::vector<Token> tokens;
  MethodStats stats;
  absl::Status status = absl::UnknownError("no end");
};

using Method = std::function<Task<void>(Gen)>;

ExtraConfig masks_of(const test::AdapterFolders& folders) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(kMasks) *
                            static_cast<size_t>(folders.base.hidden_size));
  for (float& x : values) x = normal(random);
  return folders.write("masks", {{"kind", "masks"}},
                       {{"masks", {kMasks, folders.base.hidden_size}, std::move(values)}});
}

// Two models with the same weights, so that every draft is accepted.
class Rig {
 public:
  // lazy: the device has a queue, as on CUDA. kAten: its products are not batch-invariant, as
  // there.
  explicit Rig(bool lazy, CpuKernels kernels = CpuKernels::kOwn)
      : shared_(lazy ? std::make_shared<TorchShared>(devices_.make_queue())
                     : std::make_shared<TorchShared>()) {
    test::write_tiny_model(directory_.path(), 1, kVocab);
    const test::AdapterFolders folders(directory_.path());
    DeviceConfig config;
    config.threads = 1;
    config.cpu_kernels = kernels;
    config.packed_products = kernels == CpuKernels::kAten;
    auto device = TorchDevice::create(config, shared_);
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    for (const ModelId id : {kLarge, kSmall}) {
      ModelConfig model;
      model.name = id == kLarge ? "large" : "small";
      model.path = directory_.path();
      if (id == kLarge) model.extras = {masks_of(folders)};
      const absl::Status loaded = device_->load(id, model);
      EXPECT_TRUE(loaded.ok()) << loaded;
      EXPECT_TRUE(device_->allocate_pools(id, {16, 64, 64}).ok());
    }
    held_ = std::make_unique<Held>(device_.get());
    loop_ = std::make_unique<Loop>(
        LoopOptions(), &clock_, std::vector<Backend*>{held_.get()},
        std::vector<LoopModel>{{kLarge, DeviceId(0)}, {kSmall, DeviceId(0)}}, &metrics_);
  }

  std::vector<Token> run(const Method& method, const Warp& warp, int tokens,
                         MethodStats* stats = nullptr) {
    const auto listener = std::make_shared<Listener>();
    SequenceSpec spec;
    spec.id = ++last_;
    for (int i = 0; i < kPrompt; ++i) spec.prompt.push_back(100 * i);
    spec.method = method;
    CastRole large{Role::kLarge, kLarge};
    large.mask_adapter = AdapterId(0);
    spec.cast = make_cast({large, {Role::kSmall, kSmall}});
    spec.extra_rows = bita_tree_rows(BitaTreeKind::kEfficient, kMasks, kCandidates);
    spec.stops.max_new_tokens = tokens;
    spec.warp = warp;
    spec.prefix_cache = false;
    spec.submitted = clock_.now();
    spec.listener = listener;
    loop_->submit(std::move(spec));
    do {
      while (loop_->step()) {
      }
    } while (held_->run());
    EXPECT_TRUE(listener->status.ok()) << listener->status;
    EXPECT_EQ(listener->tokens.size(), static_cast<size_t>(tokens));
    if (stats != nullptr) *stats = listener->stats;
    return listener->tokens;
  }

  const ModelShape& large() const { return device_->shape(kLarge); }
  std::string fault() const { return devices_.fault(); }

  // The calls of a round, as text: those of a long answer without those of a short one.
  // large_passes: of a round
  std::string round_of(const Method& method, const Warp& warp, int tokens_per_round,
                       int large_passes) {
    // Graphs are captured and buffers grow. The first and the last rounds have smaller trees.
    const int few = 1 + 8 * tokens_per_round;
    const int many = few + kRounds * tokens_per_round;
    for (int i = 0; i < 3; ++i) run(method, warp, many);
    const auto of_answer = [&](int tokens) {
      const Counted before = now();
      run(method, warp, tokens);
      return minus(now(), before);
    };
    const Counted short_one = of_answer(few);
    Counted counted = minus(of_answer(many), short_one);
    EXPECT_EQ(counted.rounds % large_passes, 0);
    counted.rounds /= large_passes;
    return text(counted);
  }

 private:
  struct Counted {
    std::array<int, kQueueCalls> calls{};
    LazyDevices::Traffic traffic;
    int rounds = 0;
  };
  Counted now() const { return {devices_.calls(), devices_.traffic(), held_->rounds()}; }
  static Counted minus(Counted a, const Counted& b) {
    for (size_t i = 0; i < a.calls.size(); ++i) a.calls[i] -= b.calls[i];
    a.traffic.to_device -= b.traffic.to_device;
    a.traffic.to_host -= b.traffic.to_host;
    a.traffic.bytes_to_host -= b.traffic.bytes_to_host;
    a.traffic.bytes_to_device -= b.traffic.bytes_to_device;
    a.traffic.waits -= b.traffic.waits;
    a.traffic.idle_after -= b.traffic.idle_after;
    a.traffic.allocations -= b.traffic.allocations;
    a.rounds -= b.rounds;
    return a;
  }
  static std::string text(const Counted& c) {
    const auto each = [&](int64_t n) -> int64_t {
      EXPECT_EQ(c.rounds == 0 ? 1 : n % c.rounds, 0) << "rounds differ";
      return c.rounds == 0 ? 0 : n / c.rounds;
    };
    const auto calls = [&](QueueCall call) { return each(c.calls[static_cast<size_t>(call)]); };
    const LazyDevices::Traffic& t = c.traffic;
    const int64_t bytes = c.rounds == 0 ? 0 : t.bytes_to_device / c.rounds;  // rounds differ
    ::testing::Test::RecordProperty("bytes to the device", static_cast<int>(bytes));
    return absl::StrFormat(
        "%d replays, %d launches, %d copies in, %d out of %d bytes, %d events, %d waits, %d of an "
        "idle "
        "device, %d captures, %d allocations",
        calls(QueueCall::kReplay), calls(QueueCall::kLaunch), each(t.to_device), each(t.to_host),
        each(t.bytes_to_host), calls(QueueCall::kRecord), calls(QueueCall::kSynchronize),
        each(t.idle_after), calls(QueueCall::kCapture), each(t.allocations));
  }

  const test::TempDir directory_;
  VirtualClock clock_;  // never advances
  Metrics metrics_;
  LazyDevices devices_{{}};
  const std::shared_ptr<TorchShared> shared_;
  std::unique_ptr<TorchDevice> device_;
  std::unique_ptr<Held> held_;
  std::unique_ptr<Loop> loop_;
  RequestId last_ = 0;
};

Method drafts_of_four() {
  return [](Gen g) { return speculative(g, {.draft_tokens = 4}); };
}
// Runs of four small tokens without rollback.
Method runs_of_four() {
  return [](Gen g) {
    return bild(g, {.fallback_threshold = 0, .rollback_threshold = 1e9F, .max_small_run = 4});
  };
}
Method masks() {
  return
      [](Gen g) { return bita(g, {kMasks, kCandidates, BitaTreeKind::kEfficient, Pace::kFixed}); };
}

Warp greedy() { return {}; }
Warp sampled() {
  Warp warp;
  warp.temperature = 0.8F;
  warp.top_p = 0.9F;
  warp.seed = 5;
  Processors p;
  p.repetition_penalty = 1.1F;
  p.prompt_tokens = kPrompt;
  warp.processors = std::make_shared<const Processors>(p);
  return warp;
}

class QueueCalls : public ::testing::Test {
 protected:
  // A round's calls. The tokens are those of a device that runs everything at once.
  std::string of(const Method& method, const Warp& warp, int tokens_per_round,
                 int large_passes = 1) {
    EXPECT_EQ(lazy_.run(method, warp, 20), at_once_.run(method, warp, 20));
    return lazy_.round_of(method, warp, tokens_per_round, large_passes);
  }
  void TearDown() override { EXPECT_EQ(lazy_.fault(), ""); }

 private:
  Rig lazy_{true}, at_once_{false};
};

TEST_F(QueueCalls, OfAutoregressiveDecoding) {
  EXPECT_EQ(
      of(autoregressive, greedy(), 1),
      "1 replays, 0 launches, 1 copies in, 1 out of 112 bytes, 2 events, 1 waits, 1 of an idle "
      "device, 0 captures, 0 allocations");
  EXPECT_EQ(
      of(autoregressive, sampled(), 1),
      "1 replays, 0 launches, 1 copies in, 1 out of 112 bytes, 2 events, 1 waits, 1 of an idle "
      "device, 0 captures, 0 allocations");
}

// Two passes are under way. The rig answers both before the loop launches more, so the device waits
// for the host at every other token. A device that answers each waits once for a round of 16.
TEST_F(QueueCalls, OfPassesAhead) {
  const Method rounds = [](Gen g) { return autoregressive_ahead(g, 16); };
  for (const Warp& warp : {greedy(), sampled()}) {
    EXPECT_EQ(of(rounds, warp, 16, 2),
              "2 replays, 0 launches, 2 copies in, 2 out of 224 bytes, 4 events, 2 waits, 1 of an "
              "idle device, 0 captures, 0 allocations");
  }
}

TEST_F(QueueCalls, OfFourDraftsAndTheirVerification) {
  EXPECT_EQ(
      of(drafts_of_four(), greedy(), 5),
      "5 replays, 0 launches, 5 copies in, 5 out of 1008 bytes, 10 events, 5 waits, 1 of an idle "
      "device, 0 captures, 0 allocations");
  EXPECT_EQ(
      of(drafts_of_four(), sampled(), 5),
      "5 replays, 0 launches, 5 copies in, 5 out of 1008 bytes, 10 events, 5 waits, 1 of an idle "
      "device, 0 captures, 0 allocations");
}

TEST_F(QueueCalls, OfARunOfSmallTokens) {
  EXPECT_EQ(
      of(runs_of_four(), greedy(), 5),
      "5 replays, 0 launches, 5 copies in, 5 out of 1008 bytes, 10 events, 5 waits, 5 of an idle "
      "device, 0 captures, 0 allocations");
  EXPECT_EQ(
      of(runs_of_four(), sampled(), 5),
      "5 replays, 0 launches, 5 copies in, 5 out of 1008 bytes, 10 events, 5 waits, 5 of an idle "
      "device, 0 captures, 0 allocations");
}

TEST_F(QueueCalls, OfATreeOfMaskTokens) {
  EXPECT_EQ(
      of(masks(), greedy(), 1),
      "0 replays, 3 launches, 1 copies in, 1 out of 7168 bytes, 1 events, 2 waits, 1 of an idle "
      "device, 0 captures, 0 allocations");
  EXPECT_EQ(
      of(masks(), sampled(), 1),
      "0 replays, 3 launches, 1 copies in, 1 out of 7168 bytes, 1 events, 2 waits, 1 of an idle "
      "device, 0 captures, 0 allocations");
}

// What `auto` runs where a deployment has a small model, on a device with CUDA's queue whose
// products are not batch-invariant, with times measured on a GPU. In fp64 no two tokens are equal
// up to rounding, so the tokens are those of autoregressive decoding.
TEST(QueueOfAuto, DraftsAndKeepsItsPromise) {
  const MethodEntry& entry = *find_method("speculative");
  ASSERT_EQ(entry.automatic,
            (Settings{{"draft_tokens", int64_t{64}}, {"pace", std::string("PACE_FASTEST")}}));
  Rig rig(/*lazy=*/true, CpuKernels::kAten);
  EXPECT_FALSE(rig.large().batch_invariant);
  EXPECT_EQ(contract_on(entry, Contract::kExact, rig.large().batch_invariant),
            Contract::kExactUpToRounding);
  const auto stats = std::make_shared<AcceptanceStats>();
  const Method automatic = [stats](Gen g) {
    return speculative(g, {.draft_tokens = 64, .pace = Pace::kFastest, .stats = stats});
  };
  for (const Warp& warp : {greedy(), sampled()}) {
    for (int answer = 0; answer < 2; ++answer) {
      MethodStats alone, with_drafts;
      const std::vector<Token> expected = rig.run(autoregressive, warp, 60, &alone);
      EXPECT_EQ(rig.run(automatic, warp, 60, &with_drafts), expected);
      EXPECT_EQ(alone.small_tokens, 0);
      EXPECT_GT(with_drafts.draft_tokens, 25);
      EXPECT_GT(with_drafts.small_tokens, 25);
      EXPECT_LT(with_drafts.large_seconds + with_drafts.small_seconds,
                0.85 * (alone.large_seconds + alone.small_seconds));
    }
  }
  EXPECT_EQ(rig.fault(), "");
}

}  // namespace
}  // namespace tandem
#endif
