// Test kit: the real loop on fake devices in virtual time, and recording listeners.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/backend/fake/fake_backend.h"
#include "engine/sched/loop.h"

namespace tandem::test {

// Gives the spec a cast of its own, to be changed.
inline Cast& edit_cast(SequenceSpec& spec) {
  const auto copy = std::make_shared<Cast>(*spec.cast);
  spec.cast = copy;
  return *copy;
}

// Records the events of one sequence, and checks their order.
class Recorder final : public SequenceListener {
 public:
  void on_admitted() override;
  void on_tokens(std::span<Emitted> more) override;
  void on_end(const SequenceEnd& e) override;
  bool ok() const { return ends == 1 && end.status.ok(); }

  int admitted = 0;
  int ends = 0;
  std::vector<Token> tokens;
  std::vector<Emitted> emitted;
  SequenceEnd end;
};

FakeModelConfig tiny_model(uint64_t seed = 1, int layers = 4, int vocab = 40);

struct BoxModel {
  FakeModelConfig config = tiny_model();
  PoolSize pool = {4, 256, 256};
  int device = 0;
  int window = 0;
  bool prefix_cache = true;
  int replica_of = -1;  // a model before it
};

struct BoxOptions {
  std::vector<BoxModel> models = {BoxModel()};
  LimitsConfig limits;
  std::optional<uint64_t> shuffle;
};

class Box {
 public:
  explicit Box(BoxOptions options);
  ~Box();  // a test may stop halfway

  // A request for the autoregressive method, to be changed by the test.
  SequenceSpec spec(std::vector<Token> prompt, int max_new_tokens);
  std::shared_ptr<Recorder> submit(SequenceSpec s);
  // The same with `n` choices, which differ in warp.choice.
  std::vector<std::shared_ptr<Recorder>> submit(const SequenceSpec& s, int n);

  // Runs a step of the loop, or else the next timed event. False: none is left.
  bool tick();
  void pump();
  template <class Condition>
  bool pump_until(Condition condition) {
    while (!condition()) {
      if (!tick()) return false;
    }
    return true;
  }

  const FakeModelConfig& config(int model = 0) const {
    return options_.models[static_cast<size_t>(model)].config;
  }
  const ModelPools& pools(int model = 0) const { return loop->model_pools(ModelId(model)); }
  std::vector<Token> greedy(const std::vector<Token>& prompt, int n, int model = 0) const;
  int64_t used_pages() const;
  // Expects that nothing runs and no memory is used.
  void expect_idle() const;

  VirtualClock clock;
  VirtualTimer timer{&clock};
  ValueStore values;
  FakeMemory memory;
  std::deque<FakeBackend> backends;
  Metrics metrics;
  std::unique_ptr<Loop> loop;
  RequestId last_id = 0;

 private:
  const BoxOptions options_;
};

// Processors with strong effects on the fake model, for a request with `spec`'s prompt and end
// tokens.
std::shared_ptr<const Processors> random_processors(std::mt19937_64& rng, const SequenceSpec& spec,
                                                    int vocab = 40);

std::vector<Token> random_prompt(std::mt19937_64& rng, int min, int max, int vocab = 40);

}  // namespace tandem::test
