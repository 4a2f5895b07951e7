// Prompts in long chunks, whose attention a device may compute by a library, against short ones.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/platform.h"
#include "tests/engine/backend/torch/driver.h"

namespace tandem {
namespace {

// In bf16, chunks of more than 16 rows are as close to fp64 as shorter ones.
class PromptChunks : public testing::Test {
 protected:
  static constexpr int kRows = 300, kChunk = 140, kShort = 16;

  static DecoderConfig config() {
    DecoderConfig c = tiny_config();
    c.layers = 2;
    c.hidden_size = 64;
    c.head_dim = 64;
    return c;
  }
  static std::vector<std::vector<float>> prefill(Driver& d, int chunk) {
    Sequence s = d.sequence();
    const std::vector<Token> tokens = random_tokens(kRows, 64, 3);
    Pass pass = chain_pass(d.layers(), tokens);
    RowList rows;
    for (int i = 0; i < kRows; ++i) rows.push_back(i);
    pass.reading(all_logprobs(rows, 64));
    std::vector<std::vector<float>> all = logprobs(d.run(s, pass, chunk));
    d.release(s);
    return all;
  }
  static double distance(const std::vector<std::vector<float>>& a,
                         const std::vector<std::vector<float>>& b) {
    double sum = 0;
    for (size_t r = 0; r < a.size(); ++r) {
      for (size_t t = 0; t < a[r].size(); ++t) sum += std::abs(a[r][t] - b[r][t]);
    }
    return sum / static_cast<double>(a.size() * a.front().size());
  }
  static void expect_chunks_as_good(const DecoderConfig& c) {
    Driver exact(tiny_model(c));
    TinyModel rounded = tiny_model(c);
    rounded.dtype = DType::kBFloat16;
    Driver d(rounded);
    const auto want = prefill(exact, kShort);
    const auto own = prefill(d, kShort);
    const double rounding = distance(own, want);
    EXPECT_GT(rounding, 0);
    EXPECT_LT(rounding, 0.5);
    for (const int chunk : {0, kChunk}) {
      const auto got = prefill(d, chunk);
      EXPECT_LE(distance(got, own), 2 * rounding) << chunk;
      EXPECT_LE(distance(got, want), 2 * rounding) << chunk;
    }
  }
};

TEST_F(PromptChunks, OfFullAttention) { expect_chunks_as_good(config()); }

TEST_F(PromptChunks, OfOneQueryHeadPerKey) {
  DecoderConfig c = config();
  c.kv_heads = c.heads;
  expect_chunks_as_good(c);
}

TEST_F(PromptChunks, OfALayerWithAWindow) {
  DecoderConfig c = config();
  c.window = 40;
  c.full_layers = {false, true};
  expect_chunks_as_good(c);
}

TEST_F(PromptChunks, OfAWindowInAllLayers) {
  DecoderConfig c = config();
  c.window = 120;
  expect_chunks_as_good(c);
}

// A graph pads keys, which the library cannot.
TEST_F(PromptChunks, AreNotReplayed) {
  TinyModel rounded = tiny_model(config());
  rounded.dtype = DType::kBFloat16;
  Driver d(rounded);
  prefill(d, kShort);
  const GraphCounts before = d.graph_counts();
  prefill(d, 40);
  const GraphCounts after = d.graph_counts();
  const auto steps = [](const GraphCounts& c) { return c.replayed + c.launched; };
  const auto platform = find_platform(test_device());
  ASSERT_TRUE(platform.ok());
  const KvGeometry geometry{.head_dim = config().head_dim, .kv_type = at::kBFloat16};
  if ((*platform)->takes_pieces(geometry)) {
    EXPECT_EQ(steps(after), steps(before));
  } else if (steps(before) > 0) {
    EXPECT_GT(steps(after), steps(before));
  }
}

// A chunk, a step of one row and a chunk at an offset in one batch.
TEST_F(PromptChunks, BesideOtherRows) {
  TinyModel rounded = tiny_model(config());
  rounded.dtype = DType::kBFloat16;
  Driver d(rounded);
  const std::vector<Token> tokens = random_tokens(kRows, 64, 3);
  const auto alone = prefill(d, kShort);
  const auto first_rows = [&](int begin, int end) {
    return chain_pass(d.layers(), std::span(tokens).subspan(static_cast<size_t>(begin),
                                                            static_cast<size_t>(end - begin)));
  };
  Sequence a = d.sequence(), b = d.sequence(), c = d.sequence();
  d.run(b, first_rows(0, 20));
  d.run(c, first_rows(0, 90), 45);
  Pass whole = first_rows(0, 200), step = first_rows(20, 21), more = first_rows(90, 250);
  whole.reading(all_logprobs({199}, 64));
  step.reading(all_logprobs({0}, 64));
  more.reading(all_logprobs({159}, 64));
  const std::vector<Driver::Item> items = {{&a, &whole}, {&b, &step}, {&c, &more}};
  const std::vector<WorkResult> results = d.run(items);
  const size_t rows[] = {199, 20, 249};
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << results[i].status;
    expect_row(logprobs(results[i].readout).front(), alone[rows[i]], rounding_of(DType::kBFloat16));
  }
}

}  // namespace
}  // namespace tandem
