// The loop on real threads, for TSan: one runs it, one is the devices' timer, several submit, pause
// and cancel.
#include <chrono>
#include <future>
#include <thread>

#include "engine/decode/autoregressive.h"
#include "tests/engine/sched/kit.h"

namespace tandem::test {
namespace {

class Latch final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override {
    for (const Emitted& e : more) tokens_.push_back(e.token);
  }
  // A separate status: TSan does not understand abseil's reference counts of shared ones.
  void on_end(const SequenceEnd& end) override {
    done_.set_value({absl::Status(end.status.code(), end.status.message()), tokens_});
  }

  using Result = std::pair<absl::Status, std::vector<Token>>;
  std::future<Result> result() { return done_.get_future(); }

 private:
  std::vector<Token> tokens_;
  std::promise<Result> done_;
};

TEST(LoopThreads, ManyClientsOneLoop) {
  constexpr int kClients = 4, kEach = 25;
  SteadyClock clock;
  ValueStore values;
  FakeMemory memory;
  Metrics metrics;
  std::atomic<int> answered{0}, cancelled{0};
  FakeModelConfig config = tiny_model();
  config.pass_seconds = 2e-5;
  config.row_seconds = 1e-7;
  {
    ThreadTimer timer;
    FakeBackend a(&memory, &values, &clock, &timer), b(&memory, &values, &clock, &timer);
    a.add_model(ModelId(0), "a", config, {4, 40, 40});
    b.add_model(ModelId(1), "b", config, {4, 40, 40});
    LoopOptions options;
    options.log_frees = true;
    const std::vector<LoopModel> models = {{ModelId(0), DeviceId(0)}, {ModelId(1), DeviceId(1)}};
    Loop loop(options, &clock, {&a, &b}, models, &metrics);
    std::thread runner([&] { loop.run(); });
    std::vector<std::thread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937_64 rng(static_cast<uint64_t>(c));
        for (int i = 0; i < kEach; ++i) {
          SequenceSpec s;
          s.id = static_cast<RequestId>(c * kEach + i + 1);
          s.prompt = random_prompt(rng, 1, 20);
          s.method = autoregressive;
          s.cast = make_cast({{Role::kLarge, ModelId(static_cast<int64_t>(rng() % 2)), 0}});
          s.stops.max_new_tokens = 8;
          s.submitted = clock.now();
          s.client = std::to_string(c);
          const std::vector<Token> known = fake::greedy(config, s.prompt, 8);
          const auto latch = std::make_shared<Latch>();
          s.listener = latch;
          const RequestId id = s.id;
          const bool cancel = rng() % 3 == 0;
          loop.submit(std::move(s));
          if (rng() % 3 == 0) {
            loop.pause(id);
            loop.resume(id);
          }
          if (cancel) loop.stop(id, absl::CancelledError("changed my mind"));
          const Latch::Result result = latch->result().get();
          if (result.first.ok()) {
            ++answered;
            EXPECT_EQ(result.second, known);
          } else {
            ++cancelled;
            EXPECT_TRUE(cancel);
          }
        }
      });
    }
    for (std::thread& t : clients) t.join();
    while (loop.live() > 0) std::this_thread::yield();  // pages are freed a step after the end
    loop.quit();
    runner.join();
    EXPECT_EQ(loop.model_pools(ModelId(0)).kv.used(), 0);
    EXPECT_EQ(loop.model_pools(ModelId(1)).kv.used(), 0);
  }
  EXPECT_EQ(answered + cancelled, kClients * kEach);
  EXPECT_GT(answered, 0);
}

// Other threads read the health at any time, also after they were notified of the loss.
TEST(LoopThreads, ALostDeviceIsKnownOutside) {
  SteadyClock clock;
  ValueStore values;
  FakeMemory memory;
  Metrics metrics;
  FakeModelConfig config = tiny_model();
  config.pass_seconds = config.row_seconds = 0;
  ThreadTimer timer;
  FakeBackend a(&memory, &values, &clock, &timer), b(&memory, &values, &clock, &timer);
  a.add_model(ModelId(0), "a", config, {4, 40, 40});
  b.add_model(ModelId(1), "b", config, {4, 40, 40});
  b.set_faults([](const Batch&) {
    Fault f;
    f.status = absl::UnavailableError("fell off the bus");
    return f;
  });
  const std::vector<LoopModel> models = {{ModelId(0), DeviceId(0)}, {ModelId(1), DeviceId(1)}};
  Loop loop(LoopOptions(), &clock, {&a, &b}, models, &metrics);
  EXPECT_FALSE(loop.device_lost(DeviceId(0)));
  EXPECT_FALSE(loop.device_lost(DeviceId(1)));
  std::thread runner([&] { loop.run(); });
  std::thread health([&] {
    while (!loop.device_lost(DeviceId(1))) std::this_thread::yield();
  });
  for (const int model : {0, 1}) {
    SequenceSpec s;
    s.id = static_cast<RequestId>(model) + 1;
    s.prompt = {1, 2};
    s.method = autoregressive;
    s.cast = make_cast({{Role::kLarge, ModelId(model), 0}});
    s.stops.max_new_tokens = 8;
    s.submitted = clock.now();
    const auto latch = std::make_shared<Latch>();
    s.listener = latch;
    loop.submit(std::move(s));
    const absl::Status status = latch->result().get().first;
    EXPECT_EQ(status.code(), model == 0 ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    EXPECT_EQ(loop.device_lost(DeviceId(1)), model == 1);
  }
  health.join();
  EXPECT_FALSE(loop.device_lost(DeviceId(0)));
  while (loop.live() > 0) std::this_thread::yield();
  loop.quit();
  runner.join();
}

}  // namespace
}  // namespace tandem::test
