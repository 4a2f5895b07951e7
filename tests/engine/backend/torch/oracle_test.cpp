// The golden models in the engine against Transformers: log-probabilities of all tokens within 1e-4
// and equal greedy tokens, in fp32, for any batching.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

RowList rows_up_to(int n) {
  RowList rows;
  for (int i = 0; i < n; ++i) rows.push_back(i);
  return rows;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& golden,
                  const std::string& what) {
  const std::vector<double> want = log_softmax(golden);
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t t = 0; t < want.size(); ++t) {
    ASSERT_NEAR(got[t], want[t], 1e-4) << what << ", token " << t;
  }
}

class Oracle : public testing::TestWithParam<std::string> {};

TEST_P(Oracle, LogitsOfPromptsInOneAndInSeveralChunks) {
  const Golden golden(GetParam());
  Driver driver(golden.directory(), /*page_rows=*/8);
  const int vocab = driver.shape().vocab_size;
  for (int i = 0; i < golden.prompts(); ++i) {
    const std::string tensor = "prompt_logits." + std::to_string(i);
    if (!golden.has(tensor)) continue;
    const std::vector<Token> prompt = golden.prompt(i);
    const auto want = golden.rows(tensor);
    const int n = static_cast<int>(prompt.size());
    for (const int chunk : {0, 7, 1}) {
      Sequence s = driver.sequence();
      Pass pass = chain_pass(driver.layers(), prompt);
      pass.reading(all_logprobs(rows_up_to(n), vocab));
      const auto got = logprobs(driver.run(s, pass, chunk));
      ASSERT_EQ(got.size(), want.size());
      for (size_t r = 0; r < want.size(); ++r) {
        expect_close(got[r], want[r],
                     tensor + " row " + std::to_string(r) + " chunk " + std::to_string(chunk));
      }
      driver.release(s);
    }
  }
}

// Greedy generation of the prompts in `group` side by side: each prefilled in pieces of `chunk`
// rows, so that prefill chunks and decodes of others share batches.
void expect_greedy(const Golden& golden, Driver& driver, const std::vector<int>& group, int chunk) {
  struct Stream {
    std::vector<Token> prompt, want, got;
    Sequence sequence;
    Pass pass;
    int fed = 0;  // prompt rows
    std::vector<std::vector<float>> steps;
  };
  std::vector<Stream> streams;
  for (const int i : group) {
    Stream& s = streams.emplace_back();
    s.prompt = golden.prompt(i);
    s.want = golden.greedy(i);
    s.sequence = driver.sequence();
    const std::string tensor = "step_logits." + std::to_string(i);
    if (golden.has(tensor)) s.steps = golden.rows(tensor);
  }
  const int vocab = driver.shape().vocab_size;
  for (;;) {
    std::vector<Driver::Item> items;
    std::vector<Stream*> running;
    for (Stream& s : streams) {
      if (s.got.size() == s.want.size()) continue;
      const int n = static_cast<int>(s.prompt.size());
      if (s.fed < n) {
        if (s.fed == 0) {
          s.pass = chain_pass(driver.layers(), s.prompt);
          s.pass.reading(all_logprobs({n - 1}, vocab));
        }
        const int count = chunk > 0 ? std::min(chunk, n - s.fed) : n;
        items.push_back({&s.sequence, &s.pass, s.fed, count});
        s.fed += count;
      } else {
        s.pass = chain_pass(driver.layers(), {&s.got.back(), 1});
        s.pass.reading(all_logprobs({0}, vocab));
        items.push_back({&s.sequence, &s.pass});
      }
      running.push_back(&s);
    }
    if (items.empty()) break;
    const std::vector<WorkResult> results = driver.run(items);
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_TRUE(results[i].status.ok()) << results[i].status;
      if (results[i].readout.row.empty()) continue;
      Stream& s = *running[i];
      if (s.got.size() < s.steps.size()) {
        expect_close(logprobs(results[i].readout)[0], s.steps[s.got.size()], "step");
      }
      s.got.push_back(results[i].readout.row[0].argmax);
    }
  }
  for (size_t i = 0; i < group.size(); ++i) {
    EXPECT_EQ(streams[i].got, streams[i].want) << "prompt " << group[i];
    driver.release(streams[i].sequence);
  }
}

TEST_P(Oracle, GreedyTokensAlone) {
  const Golden golden(GetParam());
  Driver driver(golden.directory(), /*page_rows=*/16);
  for (int i = 0; i < golden.prompts(); ++i) {
    expect_greedy(golden, driver, {i}, 0);
    expect_greedy(golden, driver, {i}, 5);
  }
}

TEST_P(Oracle, GreedyTokensInMixedBatchesOfEight) {
  const Golden golden(GetParam());
  for (const int chunk : {0, 6}) {
    Driver driver(golden.directory(), /*page_rows=*/4);
    for (int first = 0; first < golden.prompts(); first += 8) {
      std::vector<int> group;
      for (int i = first; i < std::min(first + 8, golden.prompts()); ++i) group.push_back(i);
      expect_greedy(golden, driver, group, chunk);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Oracle,
                         testing::Values("llama2", "llama3", "qwen2", "mistral", "qwen3", "gemma3",
                                         "gpt2", "phi3", "falcon", "falcon_groups",
                                         "falcon_one_norm", "falcon_serial", "yarn", "longrope",
                                         "starcoder2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem
