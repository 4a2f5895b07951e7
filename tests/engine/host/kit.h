// An engine on fake models, and a sink that remembers: what host tests stand on.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
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

inline std::unique_ptr<Engine> make_engine(EngineConfig config = fake_engine_config()) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::create(std::move(config));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

class Recorder final : public Sink {
 public:
  void started(const Started& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    EXPECT_TRUE(tokens_.empty());
    started_.push_back(event);
  }
  void chunk(Chunk event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    EXPECT_EQ(started_.size(), 1U);
    text_ += event.text;
    for (TokenInfo& t : event.tokens) tokens_.push_back(std::move(t));
    changed_.notify_all();
  }
  void finished(const Finished& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    finished_ = event;
    ended_ = true;
    changed_.notify_all();
  }
  void failed(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    EXPECT_FALSE(status.ok());
    status_ = status;
    ended_ = true;
    changed_.notify_all();
  }

  // What follows may be read after wait().
  absl::Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    return status_;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || tokens_.size() >= n; });
  }
  std::vector<Token> ids() const {
    std::vector<Token> ids;
    for (const TokenInfo& t : tokens_) ids.push_back(t.id);
    return ids;
  }
  const std::vector<TokenInfo>& tokens() const { return tokens_; }
  const std::string& text() const { return text_; }
  const Started& start() const { return started_.at(0); }
  const Finished& end() const { return finished_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Started> started_;
  std::vector<TokenInfo> tokens_;
  std::string text_;
  Finished finished_;
  absl::Status status_;
  bool ended_ = false;
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
  auto sink = std::make_shared<Recorder>();
  engine.submit(std::move(request), sink);
  (void)sink->wait();
  return sink;
}

}  // namespace tandem::testing
