// The candidates of BiTA's trees equal those of the authors' implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/engine/backend/torch/author_traces.h"
#include "tests/engine/backend/torch/driver.h"
#include "tests/engine/backend/torch/golden.h"

namespace tandem {
namespace {

std::vector<Token> best_by_logprob(const std::vector<float>& logprobs, size_t k) {
  std::vector<Token> all(logprobs.size());
  std::iota(all.begin(), all.end(), 0);
  std::sort(all.begin(), all.end(), [&](Token a, Token b) {
    return logprobs[static_cast<size_t>(a)] > logprobs[static_cast<size_t>(b)];
  });
  all.resize(k);
  return all;
}

TEST(AuthorCandidates, AreTheMasksBestTokens) {
  const nlohmann::json traces = test::author_traces();
  const Golden golden("llama2");
  const test::AdapterFolders folders(golden.directory());
  ModelConfig m{.name = "llama2", .path = golden.directory(), .dtype = DType::kFloat64};
  m.page_rows = 8;
  m.extras = {test::write_author_masks(folders, traces["masks"])};
  Driver driver(m, {.page_rows = 8, .pages = 200, .frontier_pages = 0});
  const int vocab = driver.shape().vocab_size;
  int trees = 0;
  for (const auto& request : traces["bita"]) {
    const int prompt = request["prompt"];
    const std::vector<Token> answer = golden.greedy(prompt);
    int made = 0;
    for (const auto& pass : request["passes"]) {
      const auto candidates = pass[0].get<std::vector<std::vector<Token>>>();
      if (!candidates.empty()) {  // of the masks behind the last token but one
        std::vector<Token> text = golden.prompt(prompt);
        text.insert(text.end(), answer.begin(), answer.begin() + made - 1);
        Pass p = chain_pass(driver.layers(), text);
        p.adapter = AdapterId(0);
        RowList rows;
        Row above = static_cast<Row>(text.size()) - 1;
        for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
          In mask;
          mask.kind = In::kMask;
          mask.id = i;
          rows.push_back(above = p.add.add(mask, above));
        }
        p.reading(all_logprobs(rows, vocab));
        Sequence s = driver.sequence();
        const auto read = logprobs(driver.run(s, p));
        for (size_t depth = 0; depth < candidates.size(); ++depth) {
          EXPECT_EQ(best_by_logprob(read[depth], candidates[depth].size()), candidates[depth])
              << request["tree"] << ", prompt " << prompt << ", token " << made << ", depth "
              << depth + 1;
        }
        driver.release(s);
        ++trees;
      }
      made += pass[1].get<int>();
    }
  }
  EXPECT_GT(trees, 70);
}

}  // namespace
}  // namespace tandem
