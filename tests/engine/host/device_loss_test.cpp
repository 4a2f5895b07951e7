// A device that fails for good: how it is reported, and which requests continue.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/engine/host/kit.h"

namespace tandem {
namespace {

using testing::make_engine;
using testing::Recorder;
using testing::run;

// "big" on cpu:0, "little" on cpu:1; deployments "pair" of both, "big" and "little".
class DeviceLoss : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineConfig config = testing::fake_engine_config();
    config.devices.push_back({});
    config.devices[1].index = 1;
    config.models[1].device = "cpu:1";
    for (size_t i = 0; i < 2; ++i) {
      config.models[i].fake->lost = [this](const std::string& device) {
        return lost_[device == "cpu:1"].load();
      };
      config.deployments.push_back({config.models[i].name, config.models[i].name, ""});
    }
    engine_ = make_engine(std::move(config));
    ASSERT_NE(engine_, nullptr);
    engine_->on_device_lost([this](const std::string& device) {
      const std::lock_guard lock(mutex_);
      told_.push_back(device);
    });
  }

  absl::Status generate(const std::string& model, const std::string& method = kAutoregressive) {
    GenerateRequest r = testing::request_for("text");
    r.model = model;
    r.method = method;
    return run(*engine_, std::move(r))->wait();
  }
  std::vector<std::string> conditioned() {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  bool available(const std::string& name) const { return engine_->deployment(name)->available(); }

  std::atomic<bool> lost_[2] = {false, false};
  std::mutex mutex_;
  std::vector<std::string> told_;
  std::unique_ptr<Engine> engine_;  // last: it calls back
};

TEST_F(DeviceLoss, LosesItsModelsAndIsReportedOnce) {
  EXPECT_TRUE(generate("little").ok());
  EXPECT_TRUE(conditioned().empty());
  lost_[1] = true;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(generate("little").code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(available("little")) << "the listener was notified after the update";
    EXPECT_TRUE(available("big") && available("pair"));
  }
  while (engine_->live_requests() > 0) std::this_thread::yield();
  EXPECT_EQ(conditioned(), std::vector<std::string>{"cpu:1"});
  const std::vector<DeviceInfo> devices = engine_->devices();
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_FALSE(devices[0].lost);
  EXPECT_TRUE(devices[1].lost);
  EXPECT_EQ(devices[1].name, "cpu:1");
}

TEST_F(DeviceLoss, OfTheSmallModelLeavesMethodsOfTheLargeModel) {
  lost_[1] = true;
  EXPECT_EQ(generate("pair", "speculative").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(generate("pair").ok());
  const DeploymentInfo pair = *engine_->deployment("pair");
  EXPECT_TRUE(pair.available());
  EXPECT_FALSE(pair.models[0].device_lost);
  EXPECT_TRUE(pair.models[1].device_lost);
  lost_[0] = true;
  EXPECT_EQ(generate("pair").code(), absl::StatusCode::kUnavailable);
  for (const DeploymentInfo& d : engine_->deployments()) EXPECT_FALSE(d.available()) << d.name;
  while (engine_->live_requests() > 0) std::this_thread::yield();
  EXPECT_EQ(conditioned(), (std::vector<std::string>{"cpu:1", "cpu:0"}));
}

TEST_F(DeviceLoss, IsNotReportedToARemovedListener) {
  engine_->on_device_lost({});
  lost_[0] = true;
  EXPECT_EQ(generate("big").code(), absl::StatusCode::kUnavailable);
  while (engine_->live_requests() > 0) std::this_thread::yield();
  EXPECT_TRUE(conditioned().empty());
}

}  // namespace
}  // namespace tandem
