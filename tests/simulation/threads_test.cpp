// The simulation's requests on real threads, for TSan: one thread runs the loop, one is the
// devices' timer, others submit, cancel, pause and resume. Timing varies; answers do not.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

#include "engine/backend/fake/fake_backend.h"
#include "tests/sanitized.h"
#include "tests/simulation/requests.h"

namespace tandem::simulation {
namespace {

constexpr uint64_t kThreadSeeds = test::kSanitized ? 40 : 200;

// Written on the loop's thread, read after the loop has ended.
class Client final : public SequenceListener {
 public:
  void on_admitted() override {}
  void on_tokens(std::span<Emitted> more) override {
    late |= ends > 0;
    for (const Emitted& e : more) tokens.push_back(e.token);
  }
  void on_end(const SequenceEnd& e) override {
    ++ends;
    end = e;
  }

  std::vector<Token> tokens;
  bool late = false;
  int ends = 0;
  SequenceEnd end;
};

void run(uint64_t seed) {
  SCOPED_TRACE(seed);
  Plan plan = make_plan(seed);
  SteadyClock clock;
  ValueStore values;
  FakeMemory memory;
  Metrics metrics;
  std::map<RequestId, std::shared_ptr<Client>> clients;
  std::vector<std::vector<SequenceSpec>> requests;
  const TimePoint start = clock.now();
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    std::vector<SequenceSpec> choices = specs_of(plan, i);
    for (SequenceSpec& s : choices) {
      s.listener = clients[s.id] = std::make_shared<Client>();
      // Relative to the start they would all have passed.
      if (s.deadline != kNever) s.deadline = start + s.deadline.time_since_epoch();
      if (s.time_limit != kNever) s.time_limit = start + s.time_limit.time_since_epoch();
      s.submitted = start;
    }
    requests.push_back(std::move(choices));
  }
  {
    ThreadTimer timer;
    std::deque<FakeBackend> devices;
    std::vector<Backend*> backends;
    for (int d = 0; d < kDevices; ++d) {
      backends.push_back(&devices.emplace_back(&memory, &values, &clock, &timer));
    }
    std::atomic<int> batches{0};
    for (FakeBackend& d : devices) {
      d.set_faults([&](const Batch& batch) {
        Fault fault;
        const int n = ++batches;
        if (plan.fault_every == 0 || batch.works.empty() || n % plan.fault_every != 0) return fault;
        if (n % 2 == 0) fault.status = absl::ResourceExhaustedError("out of memory");
        if (n % 2 != 0) fault.nan_works = {0};
        return fault;
      });
    }
    for (FakeModelConfig& model : plan.model) {
      model.pass_seconds = 1e-5;
      model.row_seconds = 0;
    }
    std::vector<LoopModel> models;
    for (int m = 0; m < plan.models(); ++m) {
      const int d = plan.device(m);
      devices[static_cast<size_t>(d)].add_model(ModelId(m), "fake", plan.config(m),
                                                plan.pool[m % kModels]);
      models.push_back({.id = ModelId(m), .device = DeviceId(d), .replica_of = plan.replica_of(m)});
    }
    LoopOptions options;
    options.limits = plan.limits;
    options.log_frees = true;
    Loop loop(options, &clock, backends, models, &metrics);
    std::thread runner([&] { loop.run(); });
    std::thread submitter([&] {
      for (auto& choices : requests) loop.submit(std::move(choices));
    });
    std::thread meddler([&] {
      for (size_t i = 0; i < plan.requests.size(); ++i) {
        const Request& q = plan.requests[i];
        if (q.stall != kNever) loop.pause(id_of(i));
        if (q.cancel != kNever) loop.stop(id_of(i), absl::CancelledError("by the client"));
      }
      for (size_t i = 0; i < plan.requests.size(); ++i) loop.resume(id_of(i));
      if (plan.shutdown != kNever) loop.stop_all(absl::UnavailableError("shutting down"));
    });
    submitter.join();
    meddler.join();
    // A pause after its request's resume would hold it forever.
    for (size_t i = 0; i < plan.requests.size(); ++i) loop.resume(id_of(i));
    while (loop.live() > 0) std::this_thread::yield();
    loop.quit();
    runner.join();
    EXPECT_EQ(loop.check_pages(), "");
    for (int m = 0; m < plan.models(); ++m) EXPECT_EQ(loop.model_pools(ModelId(m)).kv.used(), 0);
  }
  for (const auto& [id, client] : clients) {
    SCOPED_TRACE(id);
    EXPECT_EQ(client->ends, 1);
    EXPECT_FALSE(client->late);
    const std::vector<Token> answer = answer_to(plan, request_of(id), choice_of(id));
    ASSERT_LE(client->tokens.size(), answer.size());
    EXPECT_TRUE(std::equal(client->tokens.begin(), client->tokens.end(), answer.begin()));
    const bool whole = client->end.status.ok() && client->end.reason != FinishReason::kTimeLimit;
    if (whole) EXPECT_EQ(client->tokens, answer);
  }
}

TEST(SimulationThreads, WhatIsHeardIsTheSame) {
  for (uint64_t seed = 0; seed < kThreadSeeds && !HasFailure(); ++seed) {
    run(seed % 4 == 0 ? kFirstWithReplicas + seed : seed);
  }
}

}  // namespace
}  // namespace tandem::simulation
