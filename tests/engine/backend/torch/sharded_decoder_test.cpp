// Layers on several devices give the same bits as on one, for all kinds of passes.
#include "engine/backend/torch/model/sharded_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

using Rows = std::vector<std::vector<float>>;

// Virtual devices share the host's memory: CUDA devices are refused.
class ShardedDecoders : public testing::Test {
 protected:
  void SetUp() override {
    if (!test_device_keeps_bits()) GTEST_SKIP() << "CPU devices only";
  }
};

RowList counting(int n) {
  RowList rows;
  for (int i = 0; i < n; ++i) rows.push_back(i);
  return rows;
}

TinyModel tiny(const std::vector<LayerShard>& shards, DType dtype) {
  TinyModel m = tiny_model();
  m.dtype = dtype;
  m.shards = shards;
  return m;
}

// Every way in which six layers may be split over two or three devices.
std::vector<std::vector<LayerShard>> all_splits() {
  std::vector<std::vector<LayerShard>> splits;
  for (int a = 1; a < 6; ++a) {
    splits.push_back({{a}, {6, 2}});
    for (int b = a + 1; b < 6; ++b) splits.push_back({{a}, {b, 1}, {6, 3}});
  }
  return splits;
}

std::vector<std::vector<LayerShard>> some_splits() {
  return {{{3}, {6, 2}}, {{1}, {4, 1}, {6, 3}}};
}

// Rows stop at each layer and continue from there, in chunks and at once, and are read on the way.
Rows staged(Driver& d, const std::vector<Token>& tokens, int stop) {
  Sequence s = d.sequence();
  const int vocab = d.shape().vocab_size;
  const auto half = static_cast<std::ptrdiff_t>(tokens.size() / 2);
  const std::vector<Token> first(tokens.begin(), tokens.begin() + half);
  const std::vector<Token> rest(tokens.begin() + half, tokens.end());
  Pass lower = chain_pass(stop, first);
  lower.reading(all_logprobs(counting(static_cast<int>(first.size())), vocab));
  Rows rows = logprobs(d.run(s, lower, 3));
  Pass upper = chain_pass(d.layers(), rest);
  Read at_top = all_logprobs(counting(static_cast<int>(rest.size())), vocab), below = at_top;
  below.at = 4;
  at_top.rows.insert(at_top.rows.begin(), -1);
  upper.reading(at_top).reading(below);
  for (auto& row : logprobs(d.run(s, upper))) rows.push_back(std::move(row));
  d.release(s);
  return rows;
}

TEST_F(ShardedDecoders, GiveTheBitsOfOneDevice) {
  const auto tokens = random_tokens(23, 64, 5);
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kInt8}) {
    Driver whole(tiny({}, dtype));
    std::vector<Rows> want;
    for (int stop = 1; stop < 6; ++stop) want.push_back(staged(whole, tokens, stop));
    for (const auto& shards : dtype == DType::kFloat32 ? all_splits() : some_splits()) {
      Driver d(tiny(shards, dtype));
      EXPECT_EQ(d.shape().weight_bytes, whole.shape().weight_bytes);
      EXPECT_EQ(d.shape().parameters, whole.shape().parameters);
      EXPECT_EQ(d.shape().page_bytes, whole.shape().page_bytes);
      for (int stop = 1; stop < 6; ++stop) {
        expect_rows(staged(d, tokens, stop), want[static_cast<size_t>(stop) - 1]);
      }
    }
  }
}

TEST_F(ShardedDecoders, RowsMoveBetweenThemAndOneDevice) {
  const auto tokens = random_tokens(11, 64, 6), more = random_tokens(4, 64, 7);
  const auto shared = std::make_shared<TorchShared>();
  Driver whole(tiny({}, DType::kFloat64), shared, 0);
  Driver sharded(tiny({{2}, {6}}, DType::kFloat64), shared, 1);
  const auto follow = [&](Driver& d, Sequence& s) {
    Pass pass = chain_pass(d.layers(), more);
    pass.reading(all_logprobs(counting(4), 64));
    return logprobs(d.run(s, pass));
  };
  Sequence from = whole.sequence(), to = sharded.sequence(), back = whole.sequence();
  whole.run(from, chain_pass(6, tokens));
  sharded.copy(from, to);
  sharded.run_moves();
  whole.copy(to, back);
  whole.run_moves();
  const Rows want = follow(whole, from);
  expect_rows(follow(sharded, to), want);
  expect_rows(follow(whole, back), want);
}

// Also with learned positions added to a row's input.
TEST_F(ShardedDecoders, RowsOfAnotherModelConditionAsOnOneDevice) {
  const Golden golden("gpt2");
  const PoolSize size = {.page_rows = 4, .pages = 100, .frontier_pages = 0, .values = 16};
  ModelConfig config{.name = "golden", .path = golden.directory()};
  const auto shared = test_shared();
  Driver reader(config, size, shared, 0), whole(config, size, shared, 1);
  config.shards = {{"cpu:0", 1}, {"cpu:1", whole.layers() - 1}};
  Driver sharded(config, size, shared, 2);
  const std::vector<Token> prompt = golden.prompt(0);
  const int n = std::min(8, static_cast<int>(prompt.size()));
  Pass leaves = chain_pass(reader.layers(), {prompt.begin(), prompt.begin() + n});
  Read left;
  left.at = 1;
  left.hidden = true;
  left.rows = counting(n);
  leaves.reading(left);
  Sequence read = reader.sequence();
  const TicketId ticket = Driver::new_ticket();
  reader.run(read, leaves, 0, ticket);
  const auto fed = [&](Driver& d) {
    Pass pass;
    pass.stage.to = d.layers();
    Sequence s = d.sequence();
    Driver::Item item{.sequence = &s, .pass = &pass};
    for (int i = 0; i < n; ++i) {
      In in;
      in.kind = In::kEmbed;
      in.id = -1;
      in.ref = {ticket, i, /*replace=*/true};
      pass.add.chain(in);
      item.embeds.push_back({i, reader.model(), PageId(i)});
    }
    pass.reading(all_logprobs(counting(n), d.shape().vocab_size));
    const std::vector<WorkResult> results = d.run({&item, 1});
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    return logprobs(results[0].readout);
  };
  expect_rows(fed(sharded), fed(whole));
}

// Architectures with positions, windows, parallel blocks and norms of their own.
TEST_F(ShardedDecoders, OfEveryArchitecture) {
  for (const char* name : {"gpt2", "falcon", "gemma3", "phi3", "qwen3", "mistral"}) {
    const Golden golden(name);
    Driver whole(golden.directory(), 8);
    const int layers = whole.layers();
    ModelConfig config{.name = "golden", .path = golden.directory()};
    config.shards = {{"cpu:0", 1}, {"cpu:1", layers - 1}};
    Driver sharded(config, {.page_rows = 8, .pages = 400, .frontier_pages = 0});
    const std::vector<Token> prompt = golden.prompt(0);
    const auto all = [&](Driver& d) {
      Sequence s = d.sequence();
      Pass pass = chain_pass(layers, prompt);
      pass.reading(all_logprobs(counting(static_cast<int>(prompt.size())), d.shape().vocab_size));
      return logprobs(d.run(s, pass, 5));
    };
    expect_rows(all(sharded), all(whole));
  }
}

TEST_F(ShardedDecoders, LayersMustBeAllOfTheModels) {
  const Golden golden("qwen3");
  auto device = TorchDevice::create(test_device(), std::make_shared<TorchShared>());
  ASSERT_TRUE(device.ok());
  ModelConfig config{.name = "m", .path = golden.directory()};
  config.shards = {{"cpu:0", 1}, {"cpu:1", 77}};
  const absl::Status status =
      (*device)->load(ModelId(1000), config, {}, {test_device(), test_device(1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("models[m].shards: 78 layers together; allowed: "));
  const Golden encodes("t5");
  config.path = encodes.directory();
  EXPECT_THAT(
      std::string(
          (*device)->load(ModelId(1001), config, {}, {test_device(), test_device(1)}).message()),
      testing::HasSubstr("models[m].shards: 2; allowed: none for a model with an encoder"));
}

// An exception on a device's thread ends the batch, not the process.
TEST_F(ShardedDecoders, AMissingTensorOfALaterShardIsNamed) {
  TinyModel m = tiny({{3}, {6}}, DType::kFloat32);
  m.tensors.erase("model.layers.5.self_attn.o_proj.weight");
  auto device = TorchDevice::create(test_device(), std::make_shared<TorchShared>());
  ASSERT_TRUE(device.ok());
  const absl::Status status = m.load_into(**device, ModelId(1002), 4);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("model.layers.5.self_attn.o_proj"));
}

}  // namespace
}  // namespace tandem
