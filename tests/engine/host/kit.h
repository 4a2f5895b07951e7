// An engine on fake models, and a sink that records events.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/backend/fake/model.h"
#include "engine/host/engine.h"

namespace tandem::testing {

inline FakeModelConfig fake_model(uint64_t seed = 1) {
  FakeModelConfig fake;
  fake.seed = seed;
  fake.max_positions = 512;
  return fake;
}

inline EngineConfig fake_engine_config() {
  EngineConfig config;
  config.devices.push_back({});
  for (const auto& [name, seed] : {std::pair{"big", 1}, std::pair{"little", 2}}) {
    ModelConfig model;
    model.name = name;
    model.fake = fake_model(static_cast<uint64_t>(seed));
    config.models.push_back(model);
  }
  config.deployments.push_back({"pair", "big", "little"});
  return config;
}

// A model with weights, on one thread of one device, in a deployment of the same name.
inline EngineConfig real_engine_config(const std::string& name, const std::string& path,
                                       DType dtype) {
  EngineConfig config;
  config.devices.push_back({});
  config.devices[0].threads = 1;
  ModelConfig model;
  model.name = name;
  model.path = path;
  model.dtype = dtype;
  config.models.push_back(model);
  config.deployments.push_back({name, name, ""});
  return config;
}

inline std::unique_ptr<Engine> make_engine(EngineConfig config = fake_engine_config()) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::create(std::move(config));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// Records the events of a request for each choice, and checks their order.
class Recorder final : public Sink {
 public:
  explicit Recorder(int64_t choices = 1)
      : choices_(static_cast<size_t>(std::clamp<int64_t>(choices, 1, 16))) {}

  // Called on the loop thread with the number of final tokens. No pass runs until it returns.
  std::function<void(int64_t)> on_made;

  void made(int64_t tokens) override {
    made_ += tokens;
    if (on_made) on_made(made_);
  }
  void started(const Started& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over());
    EXPECT_EQ(count_, 0U);
    started_.push_back(event);
  }
  void chunk(Chunk event) override {
    const std::lock_guard lock(mutex_);
    Choice& choice = choices_.at(static_cast<size_t>(event.index));
    EXPECT_FALSE(failed_ || choice.ended);
    EXPECT_EQ(started_.size(), 1U);
    choice.text += event.text;
    count_ += event.tokens.size();
    for (TokenInfo& t : event.tokens) choice.tokens.push_back(std::move(t));
    changed_.notify_all();
  }
  void finished(const Finished& event) override {
    const std::lock_guard lock(mutex_);
    Choice& choice = choices_.at(static_cast<size_t>(event.index));
    EXPECT_FALSE(failed_ || choice.ended);
    choice.finished = event;
    choice.ended = true;
    changed_.notify_all();
  }
  void failed(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over());
    EXPECT_FALSE(status.ok());
    status_ = status;
    failed_ = true;
    changed_.notify_all();
  }

  // Call the following after wait().
  absl::Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over(); });
    return status_;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over() || count_ >= n; });
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return over();
  }
  size_t count() {  // of tokens so far
    const std::lock_guard lock(mutex_);
    return count_;
  }
  std::vector<Token> ids(size_t choice = 0) const {
    std::vector<Token> ids;
    for (const TokenInfo& t : choices_[choice].tokens) ids.push_back(t.id);
    return ids;
  }
  const std::vector<TokenInfo>& tokens(size_t choice = 0) const { return choices_[choice].tokens; }
  const std::string& text(size_t choice = 0) const { return choices_[choice].text; }
  const Started& start() const { return started_.at(0); }
  const Finished& end(size_t choice = 0) const { return choices_[choice].finished; }

 private:
  struct Choice {
    std::vector<TokenInfo> tokens;
    std::string text;
    Finished finished;
    bool ended = false;
  };
  bool over() const {
    return failed_ ||
           std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Started> started_;
  std::vector<Choice> choices_;
  size_t count_ = 0;
  int64_t made_ = 0;  // of the loop thread
  absl::Status status_;
  bool failed_ = false;
};

inline GenerateRequest request_for(Prompt prompt, int64_t max_new_tokens = 24) {
  GenerateRequest request;
  request.model = "pair";
  request.prompt = std::move(prompt);
  request.stopping.max_new_tokens = max_new_tokens;
  request.stopping.ignore_eos = true;
  return request;
}

inline std::shared_ptr<Recorder> run(Engine& engine, GenerateRequest request) {
  auto sink = std::make_shared<Recorder>(request.n);
  engine.submit(std::move(request), sink);
  (void)sink->wait();
  return sink;
}

}  // namespace tandem::testing
