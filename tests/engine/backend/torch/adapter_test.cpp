// Reads through early heads and of layer ranges on a device.
#include "engine/backend/torch/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

using testing::HasSubstr;

constexpr int kHidden = 32;  // of the golden model llama2, which has three layers

class Heads : public testing::Test {
 protected:
  // up * down is `factor` times the unit matrix.
  ExtraConfig head(const std::string& name, int layer, float factor) {
    std::vector<float> down(size_t{kHidden} * kHidden), up(down.size());
    for (size_t i = 0; i < kHidden; ++i) {
      down[i * kHidden + i] = 1;
      up[i * kHidden + i] = factor;
    }
    return folders.write(
        name, {{"kind", "head"}, {"layer", layer}},
        {{"down.weight", {kHidden, kHidden}, down}, {"up.weight", {kHidden, kHidden}, up}});
  }

  ModelConfig model(std::vector<ExtraConfig> extras, int layers = 0) const {
    ModelConfig m;
    m.name = "llama2";
    m.path = golden.directory();
    m.layers = layers;
    m.extras = std::move(extras);
    return m;
  }

  static std::vector<std::vector<float>> read(Driver& driver, int to, int at, HeadId head,
                                              const std::vector<Token>& prompt) {
    Sequence s = driver.sequence();
    Pass pass = chain_pass(to, prompt);
    RowList rows;
    for (int i = 0; i < static_cast<int>(prompt.size()); ++i) rows.push_back(i);
    Read wanted = all_logprobs(rows, driver.shape().vocab_size);
    wanted.at = at;
    wanted.head = head;
    pass.reading(wanted);
    auto got = logprobs(driver.run(s, pass));
    driver.release(s);
    return got;
  }

  const Golden golden{"llama2"};
  test::AdapterFolders folders{golden.directory()};
};

TEST_F(Heads, AreAddedToTheRowsTheyRead) {
  Driver driver(model({head("nothing", 2, 0), head("all", 2, -1), head("top", 3, 0.5f)}));
  ASSERT_EQ(driver.shape().heads.size(), 3u);
  EXPECT_EQ(driver.shape().heads[1].name, "all");
  EXPECT_EQ(driver.shape().heads[2].layer, 3);
  const std::vector<Token> prompt = golden.prompt(6);
  const auto own = read(driver, 3, 2, kOwnHead, prompt);
  EXPECT_EQ(read(driver, 3, 2, HeadId(0), prompt), own);
  EXPECT_EQ(read(driver, 2, kTop, HeadId(0), prompt), own);
  // h - h: every token is as likely as the next.
  for (const auto& row : read(driver, 3, 2, HeadId(1), prompt)) {
    for (const float p : row) EXPECT_NEAR(p, -std::log(folders.base.vocab_size), 1e-5);
  }
  // h + h / 2: the norm takes the factor out.
  const auto top = read(driver, 3, kTop, kOwnHead, prompt);
  const auto more = read(driver, 3, kTop, HeadId(2), prompt);
  for (size_t r = 0; r < top.size(); ++r) {
    for (size_t t = 0; t < top[r].size(); ++t) EXPECT_NEAR(more[r][t], top[r][t], 1e-3);
  }
}

TEST_F(Heads, SeveralInOnePass) {
  Driver driver(model({head("nothing", 1, 0), head("all", 2, -1)}));
  const std::vector<Token> prompt = golden.prompt(4);
  const int vocab = driver.shape().vocab_size;
  const auto at_one = read(driver, 3, 1, kOwnHead, prompt);
  const auto at_top = read(driver, 3, kTop, kOwnHead, prompt);
  Sequence s = driver.sequence();
  Pass pass = chain_pass(3, prompt);
  Read first = all_logprobs({1}, vocab), second = all_logprobs({0, 2}, vocab);
  first.at = 1;
  first.head = HeadId(0);
  second.at = 2;
  second.head = HeadId(1);
  pass.reading(first);
  pass.reading(second);
  pass.reading(all_logprobs({3}, vocab));
  const Readout all = driver.run(s, pass);
  const auto got = logprobs(all);
  ASSERT_EQ(got.size(), 4u);
  expect_row(got[0], at_one[1]);
  for (const size_t r : {size_t{1}, size_t{2}}) {
    EXPECT_NEAR(got[r][5], -std::log(vocab), 1e-5);
  }
  expect_row(got[3], at_top[3]);
}

TEST_F(Heads, OfAnotherLayerOrNumberAreRefused) {
  Driver driver(model({head("two", 2, 0)}));
  const std::vector<Token> prompt{5};
  const auto refused = [&](int at, HeadId head) {
    Sequence s = driver.sequence();
    Pass pass = chain_pass(3, prompt);
    Read wanted = all_logprobs({0}, 1);
    wanted.at = at;
    wanted.head = head;
    pass.reading(wanted);
    const Driver::Item item{&s, &pass};
    return std::string(driver.run(std::span(&item, 1))[0].status.message());
  };
  EXPECT_EQ(refused(2, HeadId(1)), "head: 1; allowed: the model's own, 0 to 0");
  EXPECT_EQ(refused(1, HeadId(0)), "read layer: 1; allowed: 2 with head two");
}

TEST_F(Heads, ALayerRangeAnswersAsTheWholeDoesThere) {
  Driver whole(model({}));
  Driver part(model({head("end", 2, -1)}, 2));
  EXPECT_EQ(part.layers(), 2);
  EXPECT_LT(part.shape().parameters, whole.shape().parameters);
  EXPECT_LT(part.shape().weight_bytes, whole.shape().weight_bytes);
  const std::vector<Token> prompt = golden.prompt(6);
  EXPECT_EQ(read(part, 2, kTop, kOwnHead, prompt), read(whole, 3, 2, kOwnHead, prompt));
  EXPECT_NEAR(read(part, 2, kTop, HeadId(0), prompt)[0][0], -std::log(folders.base.vocab_size),
              1e-5);
}

// Three device queues on one device, the last with fewer layers, and another device.
TEST_F(Heads, QueuesOfADeviceShareWeights) {
  auto shared = test_shared();
  std::vector<std::unique_ptr<TorchDevice>> devices;
  std::vector<std::string> said;
  for (const DeviceConfig& where :
       {DeviceConfig{.threads = 1}, DeviceConfig{.queue = 1, .threads = 1},
        DeviceConfig{.queue = 2, .threads = 1}, DeviceConfig{.index = 1, .threads = 1}}) {
    devices.push_back(*TorchDevice::create(where, shared));
    const absl::Status loaded = devices.back()->load(
        ModelId(2000 + static_cast<int>(devices.size())), model({}, where.queue == 2 ? 1 : 0),
        [&](absl::string_view line) { said.emplace_back(line); });
    ASSERT_TRUE(loaded.ok()) << loaded;
  }
  ASSERT_EQ(said.size(), 4u);
  const auto shares = HasSubstr("(shared with another device queue)");
  EXPECT_THAT(said[0], testing::Not(shares));
  EXPECT_THAT(said[1], shares);
  EXPECT_THAT(said[1], HasSubstr("on cpu:0/1 "));
  EXPECT_THAT(said[2], shares);
  EXPECT_THAT(said[3], testing::Not(shares));
}

// Otherwise the second device queue's packed_products would be ignored.
TEST_F(Heads, SharedWeightsArePackedAlike) {
  for (const std::optional<bool> packed : {std::optional<bool>(), std::optional(true)}) {
    const auto shared = test_shared();
    std::vector<std::unique_ptr<TorchDevice>> devices;
    const auto load = [&](int queue, std::optional<bool> own) {
      devices.push_back(*TorchDevice::create(
          {.queue = queue, .threads = 1, .cpu_kernels = CpuKernels::kAten, .packed_products = own},
          shared));
      return devices.back()->load(ModelId(2100 + queue), model({}));
    };
    EXPECT_TRUE(load(0, packed).ok());
    EXPECT_TRUE(load(1, packed).ok());
    const absl::Status refused = load(2, false);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(), std::string("cpu:0/2.packed_products: false; allowed: ") +
                                     (packed.has_value() ? "true" : "unset") +
                                     ", as on cpu:0, which shares the weights of llama2");
  }
}

TEST_F(Heads, WhatDoesNotFitIsRefusedAtLoad) {
  auto device = TorchDevice::create({.threads = 1}, test_shared());
  ASSERT_TRUE(device.ok());
  int id = 1000;
  const auto load = [&](const ModelConfig& m) {
    return std::string((*device)->load(ModelId(id++), m).message());
  };
  EXPECT_THAT(load(model({}, 4)), HasSubstr("models[llama2].layers: 4; allowed: 1 to 3"));
  EXPECT_THAT(load(model({head("high", 3, 0)}, 2)),
              HasSubstr("adapter.json: layer: 3; allowed: 1 to 2, the layers that are loaded"));
  folders.fingerprint = "0000000000000000";
  EXPECT_THAT(load(model({head("other", 2, 0)})), HasSubstr("models[llama2].extras[other]: "));
  EXPECT_THAT(load(model({head("other", 2, 0)})),
              HasSubstr("base.fingerprint: \"0000000000000000\"; allowed: "));
  EXPECT_THAT(load(model({{"none", folders.path() + "/none"}})), HasSubstr("none/adapter.json"));
}

}  // namespace
}  // namespace tandem
