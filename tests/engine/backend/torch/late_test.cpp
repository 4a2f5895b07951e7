// Works whose answers wait for a constraint: the others of their batch are answered at once.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/pass/constraint.h"
#include "tests/engine/backend/torch/driver.h"

namespace tandem {
namespace {

constexpr int kVocab = 64;

// Even tokens only. Paths of `known` tokens and more are known when the test runs the job.
class EvenTokens final : public TokenConstraint {
 public:
  explicit EvenTokens(size_t known) : known_(known) {}

  std::shared_ptr<const LegalTokens> after(std::span<const Token>) override {
    auto legal = std::make_shared<LegalTokens>();
    legal->bits.assign(kVocab / 32, 0x55555555);
    return legal;
  }
  std::optional<std::shared_ptr<const LegalTokens>> soon(std::span<const Token> path) override {
    if (path.size() >= known_) return std::nullopt;
    return after(path);
  }
  void post(absl::AnyInvocable<void()> job) override { jobs.push_back(std::move(job)); }
  void prepare(std::vector<Token>) override { ++prepared; }
  std::shared_ptr<const LegalTokens> known(std::span<const Token>) override { return nullptr; }
  size_t legal_drafts(std::span<const Token>, std::span<const Token> drafts) override {
    return drafts.size();
  }
  std::span<const Token> ends() const override { return ends_; }

  std::deque<absl::AnyInvocable<void()>> jobs;
  int prepared = 0;

 private:
  const size_t known_;
  const std::vector<Token> ends_ = {0};
};

Read constrained(Read read, std::shared_ptr<TokenConstraint> constraint) {
  Processors processors;
  processors.prompt_tokens = 1;
  processors.constraint = std::move(constraint);
  read.warp.processors = std::make_shared<const Processors>(std::move(processors));
  return read;
}

Read drawing(RowList rows) {
  Read read;
  read.rows = std::move(rows);
  read.draw = true;
  return read;
}

// Verification of the drafts behind the first token.
Pass verification(int layers, const std::vector<Token>& tokens,
                  std::shared_ptr<TokenConstraint> constraint) {
  Pass pass = chain_pass(layers, tokens);
  Read read;
  read.rows = last_rows(tokens.size(), tokens.size());
  read.match = true;
  pass.read = {constrained(std::move(read), std::move(constraint))};
  return pass;
}

class Late : public testing::Test {
 protected:
  // The first token and what greedy decoding gives behind it.
  std::vector<Token> greedy(int tokens) {
    std::vector<Token> text = {7};
    while (std::ssize(text) < tokens) {
      Sequence s = driver_.sequence();
      Pass pass = chain_pass(driver_.layers(), text);
      pass.read = {constrained(drawing({static_cast<Row>(text.size()) - 1}),
                               std::make_shared<EvenTokens>(100))};
      text.push_back(driver_.run(s, pass).row[0].token);
      EXPECT_EQ(text.back() % 2, 0);
      driver_.release(s);
    }
    return text;
  }

  Driver driver_{tiny_model()};
};

TEST_F(Late, OthersAreAnsweredAtOnce) {
  const std::vector<Token> text = greedy(5);
  const auto held = std::make_shared<EvenTokens>(2);
  std::vector<Token> drafts(text.begin(), text.end() - 1);
  drafts.back() ^= 1;  // rejected
  const Pass late = verification(driver_.layers(), drafts, held);
  Pass plain = chain_pass(driver_.layers(), text);
  plain.read = {drawing({static_cast<Row>(text.size()) - 1})};
  const Pass known = verification(driver_.layers(), drafts, std::make_shared<EvenTokens>(100));
  Sequence a = driver_.sequence(), b = driver_.sequence(), c = driver_.sequence();
  std::atomic<bool> a_late = false, c_late = false;
  const std::vector<Driver::Item> items = {{.sequence = &a, .pass = &late, .late = &a_late},
                                           {.sequence = &b, .pass = &plain},
                                           {.sequence = &c, .pass = &known, .late = &c_late}};
  std::vector<WorkResult> results = driver_.run(items);
  EXPECT_EQ(held->prepared, 4) << "while the model ran";
  ASSERT_NE(results[0].late, nullptr);
  EXPECT_TRUE(a_late);
  EXPECT_TRUE(results[0].readout.row.empty());
  EXPECT_EQ(results[1].readout.row.size(), 1U);
  EXPECT_EQ(results[2].late, nullptr);
  EXPECT_FALSE(c_late);
  EXPECT_EQ(results[2].readout.accepted, 2);

  // Meanwhile, works of the sequence do not run.
  Pass next = chain_pass(driver_.layers(), std::vector<Token>{2});
  next.read = {constrained(drawing({0}), held)};
  const int rows = a.rows();
  const Driver::Item again{.sequence = &a, .pass = &next, .late = &a_late};
  EXPECT_TRUE(absl::IsAborted(driver_.run({&again, 1})[0].status));
  driver_.truncate(a, rows);

  WorkResult answer;
  results[0].late->start([&](WorkResult r) { answer = std::move(r); });
  ASSERT_EQ(held->jobs.size(), 1U);
  held->jobs.front()();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.readout.accepted, results[2].readout.accepted);
  ASSERT_EQ(answer.readout.row.size(), results[2].readout.row.size());
  for (size_t i = 0; i < answer.readout.row.size(); ++i) {
    EXPECT_EQ(answer.readout.row[i].token, results[2].readout.row[i].token);
  }
  EXPECT_EQ(answer.readout.row[0].token, text[1]);
  EXPECT_EQ(answer.readout.row[2].token, text[3]);
}

}  // namespace
}  // namespace tandem
