// Rows under a tree: each path is the chain of its tokens, in the pass and after compaction.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/pass/rows.h"
#include "tests/engine/backend/torch/driver.h"

namespace tandem {
namespace {

using Rows = std::vector<std::vector<float>>;

struct TreeCase {
  Pass pass;
  std::vector<Token> tokens;  // by row
};

// A random tree of n rows that reads all of them.
TreeCase random_tree(int n, int to, int vocab, std::mt19937& random) {
  TreeCase t;
  t.pass.stage.to = to;
  t.tokens = random_tokens(n, vocab, random());
  RowList rows;
  for (int i = 0; i < n; ++i) {
    // Often the row before: branches that are chains.
    const Row parent =
        random() % 3 == 0 ? static_cast<Row>(random() % static_cast<uint32_t>(i + 1)) - 1 : i - 1;
    t.pass.add.add(token_in(t.tokens[static_cast<size_t>(i)]), parent);
    rows.push_back(i);
  }
  t.pass.reading(all_logprobs(rows, vocab));
  return t;
}

std::vector<int> path_to(const Pass& pass, int row) {
  std::vector<int> path;
  for (int r = row; r >= 0; r = pass.add.parent[static_cast<size_t>(r)]) path.push_back(r);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<float> last_row(Driver& d, const std::vector<Token>& tokens, int to) {
  Sequence s = d.sequence();
  Pass p = chain_pass(to, tokens);
  p.reading(all_logprobs({static_cast<Row>(tokens.size()) - 1}, d.shape().vocab_size));
  auto rows = logprobs(d.run(s, p));
  d.release(s);
  return rows[0];
}

class Tree : public testing::TestWithParam<std::tuple<int, DType>> {};  // window, type

TEST_P(Tree, PathsAreChainsAndStayAfterCompaction) {
  DecoderConfig c = tiny_config();
  c.window = std::get<0>(GetParam());
  TinyModel tiny = tiny_model(c);
  tiny.dtype = std::get<1>(GetParam());
  Driver d(tiny);
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    const int past = static_cast<int>(random() % 20);
    std::vector<Token> text = random_tokens(past, 64, random());
    Sequence s = d.sequence();
    if (past > 0) d.run(s, chain_pass(6, text));
    const int n = 1 + static_cast<int>(random() % 24);
    const TreeCase t = random_tree(n, 6, 64, random);
    const Rows got = logprobs(d.run(s, t.pass));
    for (int row = 0; row < n; ++row) {
      std::vector<Token> chain = text;
      for (const int r : path_to(t.pass, row)) chain.push_back(t.tokens[static_cast<size_t>(r)]);
      expect_row(got[static_cast<size_t>(row)], last_row(d, chain, 6));
    }
    // Accept one path and continue: as if only its tokens had been run.
    const std::vector<int> kept =
        path_to(t.pass, static_cast<int>(random() % static_cast<uint32_t>(n)));
    for (const int r : kept) text.push_back(t.tokens[static_cast<size_t>(r)]);
    d.keep(s, n, kept);
    const auto more = random_tokens(3, 64, random());
    Pass next = chain_pass(6, more);
    next.reading(all_logprobs({2}, 64));
    const Rows after = logprobs(d.run(s, next));
    text.insert(text.end(), more.begin(), more.end());
    expect_row(after[0], last_row(d, text, 6));
    d.release(s);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, Tree,
                         testing::Combine(testing::Values(0, 5, 16),
                                          testing::Values(DType::kFloat64, DType::kFloat32)));

// An early-layer tree whose accepted path continues to the top, in a batch with a chain.
TEST(TreeOfEarlyLayers, AcceptedPathContinuesFromItsFrontier) {
  Driver d(tiny_model());
  std::mt19937 random(6);
  for (int round = 0; round < 10; ++round) {
    std::vector<Token> text = random_tokens(9, 64, random());
    Sequence s = d.sequence();
    d.run(s, chain_pass(6, text));
    const TreeCase t = random_tree(11, 3, 64, random);
    d.run(s, t.pass);
    const std::vector<int> kept = path_to(t.pass, static_cast<int>(random() % 11));
    d.keep(s, 11, kept);
    for (const int r : kept) text.push_back(t.tokens[static_cast<size_t>(r)]);
    Pass up = chain_pass(6, {});
    up.reading(all_logprobs({-1}, 64));
    Sequence other = d.sequence();
    Pass beside = chain_pass(6, random_tokens(5, 64, 1));
    const Driver::Item items[] = {{&other, &beside}, {&s, &up}};
    const auto results = d.run(items);
    ASSERT_TRUE(results[1].status.ok()) << results[1].status;
    expect_row(logprobs(results[1].readout)[0], last_row(d, text, 6));
    d.release(s);
    d.release(other);
  }
}

// Rows of a tree behind rows that are still on the frontier.
TEST(TreeOfEarlyLayers, GrowsOnAFrontier) {
  Driver d(tiny_model());
  std::mt19937 random(8);
  const std::vector<Token> text = random_tokens(10, 64, 3);
  Sequence s = d.sequence();
  d.run(s, chain_pass(6, std::span(text).first(4)));
  d.run(s, chain_pass(2, std::span(text).subspan(4)));
  const TreeCase t = random_tree(12, 6, 64, random);
  const Rows got = logprobs(d.run(s, t.pass));
  for (int row = 0; row < 12; ++row) {
    std::vector<Token> chain = text;
    for (const int r : path_to(t.pass, row)) chain.push_back(t.tokens[static_cast<size_t>(r)]);
    expect_row(got[static_cast<size_t>(row)], last_row(d, chain, 6));
  }
}

}  // namespace
}  // namespace tandem
