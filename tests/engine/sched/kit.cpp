#include "tests/engine/sched/kit.h"

#include <algorithm>
#include <limits>
#include <map>

#include "engine/decode/autoregressive.h"

namespace tandem::test {

void Recorder::on_admitted() {
  EXPECT_EQ(ends, 0);
  EXPECT_EQ(++admitted, 1);
}

void Recorder::on_tokens(std::span<Emitted> more) {
  EXPECT_EQ(admitted, 1);
  EXPECT_EQ(ends, 0) << "tokens after the end";
  EXPECT_FALSE(more.empty());
  for (Emitted& e : more) {
    tokens.push_back(e.token);
    emitted.push_back(std::move(e));
  }
}

void Recorder::on_end(const SequenceEnd& e) {
  EXPECT_EQ(++ends, 1) << "ended twice";
  end = e;
  EXPECT_EQ(end.completion_tokens, static_cast<int64_t>(tokens.size()));
}

FakeModelConfig tiny_model(uint64_t seed, int layers, int vocab) {
  FakeModelConfig config;
  config.vocab_size = vocab;
  config.layers = layers;
  config.pass_seconds = 0.001;
  config.row_seconds = 0.0001;
  config.seed = seed;
  return config;
}

Box::Box(BoxOptions options) : options_(std::move(options)) {
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
    models.push_back({.id = id,
                      .device = DeviceId(model.device),
                      .series = &metrics.models.emplace_back(),
                      .prefix_cache = model.prefix_cache,
                      .replica_of = ModelId(model.replica_of)});
  }
  std::vector<Backend*> devs;
  for (FakeBackend& b : backends) devs.push_back(&b);
  LoopOptions loop_options;
  loop_options.limits = options_.limits;
  loop_options.shuffle = options_.shuffle;
  loop_options.log_frees = true;
  loop = std::make_unique<Loop>(loop_options, &clock, devs, models, &metrics);
}

Box::~Box() {
  loop->stop_all(absl::CancelledError("the box closes"));
  pump();
  loop.reset();
}

SequenceSpec Box::spec(std::vector<Token> prompt, int max_new_tokens) {
  SequenceSpec s;
  s.id = ++last_id;
  s.prompt = std::move(prompt);
  s.method = autoregressive;
  s.cast = make_cast({{Role::kLarge, ModelId(0), 0}});
  s.stops.max_new_tokens = max_new_tokens;
  s.submitted = clock.now();
  s.series = &metrics.series.front();
  return s;
}

std::shared_ptr<Recorder> Box::submit(SequenceSpec s) {
  auto recorder = std::make_shared<Recorder>();
  s.listener = recorder;
  loop->submit(std::move(s));
  return recorder;
}

std::vector<std::shared_ptr<Recorder>> Box::submit(const SequenceSpec& s, int n) {
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

bool Box::tick() {
  if (loop->step()) return true;
  const TimePoint device = timer.next(), due = loop->next_timer();
  if (device == kNever && due == kNever) return false;
  if (device <= due) return timer.fire_next();
  clock.advance_to(due);
  return true;
}

void Box::pump() {
  while (tick()) {
  }
}

std::vector<Token> Box::greedy(const std::vector<Token>& prompt, int n, int model) const {
  return fake::greedy(config(model), prompt, n, options_.models[static_cast<size_t>(model)].window);
}

int64_t Box::used_pages() const {
  int64_t used = 0;
  for (size_t m = 0; m < options_.models.size(); ++m) {
    const ModelPools& p = pools(static_cast<int>(m));
    used += p.kv.used() + p.frontier.used() + p.values.used();
  }
  return used;
}

void Box::expect_idle() const {
  EXPECT_EQ(loop->live(), 0);
  EXPECT_FALSE(loop->device_busy());
  EXPECT_EQ(used_pages(), 0);
  EXPECT_EQ(loop->check_pages(), "");
  EXPECT_EQ(loop->next_timer(), kNever);
}

std::shared_ptr<const Processors> random_processors(std::mt19937_64& rng, const SequenceSpec& spec,
                                                    int vocab) {
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

std::vector<Token> random_prompt(std::mt19937_64& rng, int min, int max, int vocab) {
  std::vector<Token> p(static_cast<size_t>(min) + rng() % static_cast<uint64_t>(max - min + 1));
  for (Token& t : p) t = static_cast<Token>(rng() % static_cast<uint64_t>(vocab));
  return p;
}

}  // namespace tandem::test
