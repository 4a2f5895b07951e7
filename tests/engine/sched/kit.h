// An engine in a box: the real loop over fake devices on virtual time, and listeners that record.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/backend/fake/fake_backend.h"
#include "engine/decode/autoregressive.h"
#include "engine/sched/loop.h"

namespace tandem::test {

// Records what one sequence hears, and that it hears it in a legal order.
class Recorder final : public SequenceListener {
 public:
  void on_admitted() override {
    EXPECT_EQ(ends, 0);
    EXPECT_EQ(++admitted, 1);
  }
  void on_tokens(std::vector<Emitted> more) override {
    EXPECT_EQ(admitted, 1);
    EXPECT_EQ(ends, 0) << "tokens after the end";
    EXPECT_FALSE(more.empty());
    for (Emitted& e : more) {
      tokens.push_back(e.token);
      emitted.push_back(std::move(e));
    }
  }
  void on_end(const SequenceEnd& e) override {
    EXPECT_EQ(++ends, 1) << "ended twice";
    end = e;
    EXPECT_EQ(end.completion_tokens, static_cast<int64_t>(tokens.size()));
  }
  bool ok() const { return ends == 1 && end.status.ok(); }

  int admitted = 0;
  int ends = 0;
  std::vector<Token> tokens;
  std::vector<Emitted> emitted;
  SequenceEnd end;
};

inline FakeModelConfig tiny_model(uint64_t seed = 1, int layers = 4, int vocab = 40) {
  FakeModelConfig config;
  config.vocab_size = vocab;
  config.layers = layers;
  config.pass_seconds = 0.001;
  config.row_seconds = 0.0001;
  config.seed = seed;
  return config;
}

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
  explicit Box(BoxOptions options) : options_(std::move(options)) {
    int devices = 1;
    for (const BoxModel& m : options_.models) devices = std::max(devices, m.device + 1);
    for (int d = 0; d < devices; ++d) backends.emplace_back(&memory, &values, &clock, &timer);
    std::vector<LoopModel> models;
    metrics.series.emplace_back();
    for (size_t m = 0; m < options_.models.size(); ++m) {
      const BoxModel& model = options_.models[m];
      const ModelId id(static_cast<int64_t>(m));
      backends[static_cast<size_t>(model.device)].add_model(id, "fake", model.config, model.pool,
                                                            model.window);
      models.push_back({id, DeviceId(model.device), &metrics.models.emplace_back(),
                        model.prefix_cache, ModelId(model.replica_of)});
    }
    std::vector<Backend*> devs;
    for (FakeBackend& b : backends) devs.push_back(&b);
    LoopOptions loop_options;
    loop_options.limits = options_.limits;
    loop_options.shuffle = options_.shuffle;
    loop_options.log_frees = true;
    loop = std::make_unique<Loop>(loop_options, &clock, devs, models, &metrics);
  }
  ~Box() {  // a test may stop halfway
    loop->stop_all(absl::CancelledError("the box closes"));
    pump();
    loop.reset();
  }

  // A request for the autoregressive method; `spec` is its to change.
  SequenceSpec spec(std::vector<Token> prompt, int max_new_tokens) {
    SequenceSpec s;
    s.id = ++last_id;
    s.prompt = std::move(prompt);
    s.method = autoregressive;
    s.roles = {{Role::kLarge, ModelId(0), 0}};
    s.stops.max_new_tokens = max_new_tokens;
    s.submitted = clock.now();
    s.series = &metrics.series.front();
    return s;
  }
  std::shared_ptr<Recorder> submit(SequenceSpec s) {
    auto recorder = std::make_shared<Recorder>();
    s.listener = recorder;
    loop->submit(std::move(s));
    return recorder;
  }

  // The same with `n` choices; warp.choice tells them apart.
  std::vector<std::shared_ptr<Recorder>> submit(const SequenceSpec& s, int n) {
    std::vector<SequenceSpec> choices(static_cast<size_t>(n), s);
    std::vector<std::shared_ptr<Recorder>> recorders;
    for (int i = 0; i < n; ++i) {
      SequenceSpec& choice = choices[static_cast<size_t>(i)];
      if (i > 0) choice.id = ++last_id;
      choice.warp.choice = static_cast<uint32_t>(i);
      choice.listener = recorders.emplace_back(std::make_shared<Recorder>());
    }
    loop->submit(std::move(choices));
    return recorders;
  }

  // Does one thing: a step of the loop, or when that has nothing to do, what comes next in time.
  // False: nothing will ever happen.
  bool tick() {
    if (loop->step()) return true;
    const TimePoint device = timer.next(), due = loop->next_timer();
    if (device == kNever && due == kNever) return false;
    if (device <= due) return timer.fire_next();
    clock.advance_to(due);
    return true;
  }
  void pump() {
    while (tick()) {
    }
  }
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
  std::vector<Token> greedy(const std::vector<Token>& prompt, int n, int model = 0) const {
    return fake::greedy(config(model), prompt, n,
                        options_.models[static_cast<size_t>(model)].window);
  }
  int64_t used_pages() const {
    int64_t used = 0;
    for (size_t m = 0; m < options_.models.size(); ++m) {
      const ModelPools& p = pools(static_cast<int>(m));
      used += p.kv.used() + p.frontier.used() + p.values.used();
    }
    return used;
  }
  // Nothing runs, nothing is held.
  void expect_idle() const {
    EXPECT_EQ(loop->live(), 0);
    EXPECT_FALSE(loop->device_busy());
    EXPECT_EQ(used_pages(), 0);
    EXPECT_EQ(loop->check_pages(), "");
    EXPECT_EQ(loop->next_timer(), kNever);
  }

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

// Processors that change much of what the fake model says, as a request with `spec`'s prompt and
// ends has them.
inline std::shared_ptr<const Processors> random_processors(std::mt19937_64& rng,
                                                           const SequenceSpec& spec,
                                                           int vocab = 40) {
  const auto token = [&] { return static_cast<Token>(rng() % static_cast<uint64_t>(vocab)); };
  Processors p;
  p.prompt_tokens = static_cast<int>(spec.prompt.size());
  if (rng() % 2) p.repetition_penalty = 0.7F + static_cast<float>(rng() % 200) / 100;
  if (rng() % 2) p.presence_penalty = static_cast<float>(rng() % 400) / 100 - 2;
  if (rng() % 2) p.frequency_penalty = static_cast<float>(rng() % 400) / 100 - 2;
  std::map<Token, float> bias;
  for (uint64_t n = rng() % 4; n > 0; --n) bias[token()] = static_cast<float>(rng() % 9) - 4;
  if (rng() % 2) bias[token()] = -std::numeric_limits<float>::infinity();
  p.bias.assign(bias.begin(), bias.end());
  p.ends = spec.stops.eos;
  p.min_new_tokens = static_cast<int>(rng() % 6);
  return std::make_shared<const Processors>(std::move(p));
}

inline std::vector<Token> random_prompt(std::mt19937_64& rng, int min, int max, int vocab = 40) {
  std::vector<Token> p(static_cast<size_t>(min) + rng() % static_cast<uint64_t>(max - min + 1));
  for (Token& t : p) t = static_cast<Token>(rng() % static_cast<uint64_t>(vocab));
  return p;
}

}  // namespace tandem::test
