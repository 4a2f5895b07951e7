// T5 and similar models against Transformers: log-probabilities of all tokens within 1e-4 and equal
// greedy tokens, in fp32, for any batching of sources and rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

constexpr Token kStart = 0;

void expect_close(const std::vector<float>& got, const std::vector<float>& golden,
                  const std::string& what) {
  const std::vector<double> want = log_softmax(golden);
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t t = 0; t < want.size(); ++t) {
    ASSERT_NEAR(got[t], want[t], 1e-4) << what << ", token " << t;
  }
}

RowList rows_up_to(int n) {
  RowList rows;
  for (int i = 0; i < n; ++i) rows.push_back(i);
  return rows;
}

// The start token and the greedy ones but the last.
std::vector<Token> fed(const Golden& golden, int i) {
  std::vector<Token> tokens = golden.greedy(i);
  tokens.insert(tokens.begin(), kStart);
  tokens.pop_back();
  return tokens;
}

class EncoderDecoder : public testing::TestWithParam<const char*> {
 protected:
  EncoderDecoder() : golden(GetParam()) {}

  // The memories of these prompts, encoded in one batch.
  std::vector<Sequence> encode(Driver& driver, const std::vector<int>& prompts) const {
    std::vector<Sequence> memories;
    std::vector<Pass> passes;
    for (const int i : prompts) {
      memories.push_back(driver.memory());
      passes.push_back(source_pass(driver.layers(), golden.prompt(i)));
    }
    std::vector<Driver::Item> items;
    for (size_t i = 0; i < prompts.size(); ++i) items.push_back({&memories[i], &passes[i]});
    for (const WorkResult& r : driver.run(items)) EXPECT_TRUE(r.status.ok()) << r.status;
    return memories;
  }

  const Golden golden;
};

TEST_P(EncoderDecoder, LogitsOfAllStepsInOneAndInSeveralChunks) {
  Driver driver(golden.directory(), /*page_rows=*/8);
  const int vocab = driver.shape().vocab_size;
  int compared = 0;
  for (int i = 0; i < golden.prompts(); ++i) {
    const std::string tensor = "step_logits." + std::to_string(i);
    if (!golden.has(tensor)) continue;
    const auto want = golden.rows(tensor);
    const std::vector<Token> tokens = fed(golden, i);
    const auto n = static_cast<int>(tokens.size());
    Sequence memory = encode(driver, {i})[0];
    for (const int chunk : {n, 7, 1}) {
      Sequence s = driver.sequence();
      Pass pass = chain_pass(driver.layers(), tokens);
      pass.reading(all_logprobs(rows_up_to(n), vocab));
      for (int first = 0; first < n; first += chunk) {
        const Driver::Item item{.sequence = &s,
                                .pass = &pass,
                                .first = first,
                                .count = std::min(chunk, n - first),
                                .memory = &memory};
        const std::vector<WorkResult> results = driver.run({&item, 1});
        ASSERT_TRUE(results[0].status.ok()) << results[0].status;
        const auto got = logprobs(results[0].readout);
        for (size_t r = 0; r < got.size(); ++r, ++compared) {
          const size_t row = static_cast<size_t>(first) + r;
          expect_close(got[r], want[row], tensor + " row " + std::to_string(row));
        }
      }
      driver.release(s);
    }
    driver.release(memory);
  }
  EXPECT_GT(compared, 600);
}

TEST_P(EncoderDecoder, GreedyTokensAloneAndInMixedBatches) {
  for (const size_t together : {1, 8}) {
    Driver driver(golden.directory(), /*page_rows=*/4);
    for (int first = 0; first < golden.prompts(); first += static_cast<int>(together)) {
      std::vector<int> prompts;
      for (int i = first; i < golden.prompts() && prompts.size() < together; ++i) {
        prompts.push_back(i);
      }
      std::vector<Sequence> memories = encode(driver, prompts);
      struct Stream {
        std::vector<Token> got;
        Sequence sequence;
        Pass pass;
      };
      std::vector<Stream> streams(prompts.size());
      for (Stream& s : streams) s.sequence = driver.sequence();
      for (size_t step = 0; step < golden.greedy(0).size(); ++step) {
        std::vector<Driver::Item> items;
        for (size_t i = 0; i < streams.size(); ++i) {
          Stream& s = streams[i];
          const Token last = s.got.empty() ? kStart : s.got.back();
          s.pass = chain_pass(driver.layers(), {&last, 1});
          Read read;
          read.rows = {0};
          s.pass.reading(read);
          items.push_back({.sequence = &s.sequence, .pass = &s.pass, .memory = &memories[i]});
        }
        const std::vector<WorkResult> results = driver.run(items);
        for (size_t i = 0; i < streams.size(); ++i) {
          ASSERT_TRUE(results[i].status.ok()) << results[i].status;
          streams[i].got.push_back(results[i].readout.row[0].argmax);
        }
      }
      for (size_t i = 0; i < streams.size(); ++i) {
        EXPECT_EQ(streams[i].got, golden.greedy(prompts[i])) << "prompt " << prompts[i];
        driver.release(streams[i].sequence);
        driver.release(memories[i]);
      }
    }
  }
}

// Trees with branches: distances follow from depth, not from rows.
TEST_P(EncoderDecoder, BranchesOfATreeAreChains) {
  Driver driver(golden.directory(), /*page_rows=*/4);
  const int vocab = driver.shape().vocab_size;
  Sequence memory = encode(driver, {5})[0];
  const std::vector<Token> tokens = fed(golden, 5);
  const std::span<const Token> prefix(tokens.data(), 9);
  const auto run = [&](Sequence& s, const Pass& pass) {
    const Driver::Item item{.sequence = &s, .pass = &pass, .memory = &memory};
    std::vector<WorkResult> results = driver.run({&item, 1});
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    return logprobs(results[0].readout);
  };
  Sequence branched = driver.sequence();
  run(branched, chain_pass(driver.layers(), prefix));
  // 0 - 1 - 2 and 0 - 3 - 4, of the same tokens
  Pass tree;
  tree.stage.to = driver.layers();
  for (const auto& [token, parent] : {std::pair<Token, Row>{tokens[9], -1},
                                      {tokens[10], 0},
                                      {tokens[11], 1},
                                      {tokens[10], 0},
                                      {tokens[11], 3}}) {
    tree.add.add(token_in(token), parent);
  }
  tree.reading(all_logprobs(rows_up_to(5), vocab));
  const auto got = run(branched, tree);
  Sequence straight = driver.sequence();
  Pass chain = chain_pass(driver.layers(), std::span(tokens).first(12));
  chain.reading(all_logprobs({9, 10, 11}, vocab));
  const auto want = run(straight, chain);
  EXPECT_EQ(got[0], want[0]);
  EXPECT_EQ(got[1], want[1]);
  EXPECT_EQ(got[2], want[2]);
  EXPECT_EQ(got[3], want[1]);
  EXPECT_EQ(got[4], want[2]);
}

TEST_P(EncoderDecoder, PassesOfTheWrongKindFailAlone) {
  Driver driver(golden.directory(), /*page_rows=*/4);
  const std::vector<Token> tokens{kStart, 3, 5};
  Sequence memory = encode(driver, {3})[0];
  Pass good = chain_pass(driver.layers(), tokens);
  good.reading(all_logprobs({2}, driver.shape().vocab_size));
  Pass all = good;
  all.see = See::kAll;
  Sequence alone = driver.sequence();
  const Driver::Item item{.sequence = &alone, .pass = &good, .memory = &memory};
  const auto want = logprobs(driver.run({&item, 1})[0].readout);
  std::vector<Sequence> s;
  for (int i = 0; i < 3; ++i) s.push_back(driver.sequence());
  const std::vector<Driver::Item> items{{.sequence = &s[0], .pass = &good},  // reads none
                                        {.sequence = &s[1], .pass = &all, .memory = &memory},
                                        {.sequence = &s[2], .pass = &good, .memory = &memory}};
  const std::vector<WorkResult> results = driver.run(items);
  EXPECT_THAT(std::string(results[0].status.message()),
              testing::HasSubstr("memory: 0; allowed: 1"));
  EXPECT_THAT(std::string(results[1].status.message()), testing::HasSubstr("is a decoder"));
  ASSERT_TRUE(results[2].status.ok());
  EXPECT_EQ(logprobs(results[2].readout), want);

  // An encoder's: not causal, and whole.
  Sequence other = driver.memory();
  const Pass causal = chain_pass(driver.layers(), tokens);
  const Pass source = source_pass(driver.layers(), tokens);
  const Driver::Item wrong{.sequence = &other, .pass = &causal};
  EXPECT_THAT(std::string(driver.run({&wrong, 1})[0].status.message()),
              testing::HasSubstr("is an encoder"));
  driver.release(other);
  const Driver::Item part{.sequence = &other, .pass = &source, .first = 0, .count = 2};
  EXPECT_EQ(driver.run({&part, 1})[0].status.code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Models, EncoderDecoder, testing::Values("t5", "t5_v1_1", "mt5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem
