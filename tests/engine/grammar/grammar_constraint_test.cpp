#include "engine/grammar/grammar_constraint.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "engine/grammar/grammars.h"

namespace tandem {
namespace {

using Kind = GrammarSpec::Kind;

constexpr Token kEnd = 256;  // of Tokenizer::bytes()

constexpr char kSchema[] = R"({"type":"object","properties":{"a":{"type":"integer"},
    "b":{"type":"array","items":{"enum":["x","yy"]}}},"required":["a"]})";

class Constraints : public testing::Test {
 protected:
  std::shared_ptr<GrammarConstraint> make(Kind kind, const std::string& text) {
    auto made = grammars_.constraint("client", tokenizer_, {kEnd}, {kind, text, ""});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  static std::vector<Token> tokens(const std::string& text) {
    return std::vector<Token>(text.begin(), text.end());
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::bytes();
  Grammars grammars_;
};

// Whatever was asked before: the set is that of a fresh matcher on the same path.
TEST_F(Constraints, AreAFunctionOfThePath) {
  std::mt19937_64 rng(1);
  for (const auto& [kind, text] : std::vector<std::pair<Kind, std::string>>{
           {Kind::kJsonSchema, kSchema},
           {Kind::kRegex, "(ab|a[cd]*e)+f?"},
           {Kind::kGrammar, "start: \"(\" start \")\" start | \"x\"? \"y\""},
           // On different paths the lexer is in the same state.
           {Kind::kGrammar, "start: \"e\" | /ea/ start start"},
           {Kind::kGrammar, "start: \"a\" X \"b\" | \"c\" X \"d\"\nX: /x+/"},
           // Behind "b", the text is fixed and endless.
           {Kind::kGrammar, "start: \"a\" start | \"b\" c | \"d\"\nc: \"c\" c"},
           {Kind::kJsonObject, ""}}) {
    const auto walked = make(kind, text);
    std::vector<Token> path;
    int dead = 0;
    for (int step = 0; step < 1500; ++step) {
      const auto legal = walked->after(path);
      const auto fresh = walked->fork();
      ASSERT_TRUE(fresh.ok());
      const auto expected = (*fresh)->after(path);
      ASSERT_EQ(legal == nullptr, expected == nullptr);
      if (legal != nullptr) {
        ASSERT_EQ(legal->status, expected->status);
        ASSERT_EQ(legal->bits, expected->bits);
        ASSERT_EQ(legal->may_end, expected->may_end);
        ASSERT_EQ(legal->has(kEnd), legal->may_end);
      }
      // Onward by a legal token, an illegal one or the end, and back by some.
      if (legal == nullptr || path.size() > 40 || rng() % 4 == 0) {
        dead += legal == nullptr;
        path.resize(path.size() - std::min<size_t>(path.size(), 1 + rng() % 6));
        continue;
      }
      Token t = static_cast<Token>(rng() % 257);
      const bool any = rng() % 8 == 0;
      for (int i = 0; i < 5000 && !any && !legal->has(t); ++i) t = static_cast<Token>(rng() % 257);
      path.push_back(t);
    }
    EXPECT_GT(dead, 5);
  }
}

TEST_F(Constraints, RetainRecentAnswers) {
  const auto constraint = make(Kind::kRegex, "[ab]*");
  for (int round = 0; round < 3; ++round) {
    for (int drafts = 0; drafts <= 8; ++drafts) constraint->after(tokens(std::string(drafts, 'a')));
  }
  EXPECT_EQ(constraint->masks(), 9);
}

TEST_F(Constraints, CutDraftsAtTheFirstIllegalToken) {
  const auto constraint = make(Kind::kJsonSchema, kSchema);
  EXPECT_EQ(constraint->legal_drafts(tokens("{\"a\": 1"), tokens("2, \"b\": [\"z\"]")), 10U);
  EXPECT_EQ(constraint->legal_drafts(tokens("nonsense"), tokens("{")), 0U);
  EXPECT_TRUE(constraint->after(tokens("{\"a\": 1"))->has(','));
}

TEST_F(Constraints, ForcedTokensAreLegal) {
  const auto constraint = make(Kind::kRegex, "start (alpha|beta) end");
  EXPECT_EQ(constraint->known({}), nullptr) << "not computed yet";
  EXPECT_EQ(constraint->after({})->forced, tokens("start "));
  EXPECT_EQ(constraint->after(tokens("start b"))->forced, tokens("eta end"));
  EXPECT_TRUE(constraint->after(tokens("start "))->forced.empty());
  EXPECT_TRUE(constraint->after(tokens("start beta end"))->forced.empty());
  EXPECT_EQ(constraint->known({})->forced.size(), 6U);
}

TEST_F(Constraints, ArePreparedOnAnotherThread) {
  auto compiled = std::make_shared<const CompiledGrammar>(
      *GrammarVocabulary::of(*tokenizer_, {kEnd}),
      *(*GrammarVocabulary::of(*tokenizer_, {kEnd}))->compile({Kind::kRegex, "a*", ""}));
  std::shared_ptr<GrammarConstraint> constraint;
  {
    Worker worker;
    constraint = *GrammarConstraint::of(compiled, {&worker});
    constraint->prepare(tokens("aaa"));
  }  // runs the job
  EXPECT_EQ(constraint->masks(), 1);
  EXPECT_TRUE(constraint->after(tokens("aaa"))->may_end);
  EXPECT_EQ(constraint->masks(), 1);
}

// soon() never computes on the caller's thread.
TEST_F(Constraints, AreKnownSoonOrLater) {
  const auto vocabulary = *GrammarVocabulary::of(*tokenizer_, {kEnd});
  const auto compiled = std::make_shared<const CompiledGrammar>(
      vocabulary, *vocabulary->compile({Kind::kRegex, "a*", ""}));
  std::promise<void> release, late;
  Worker worker;
  const auto constraint = *GrammarConstraint::of(compiled, {&worker});
  worker.post([held = release.get_future().share()] { held.wait(); });
  EXPECT_EQ(constraint->soon(tokens("aa")), std::nullopt);
  EXPECT_EQ(constraint->masks(), 0);
  std::shared_ptr<const LegalTokens> legal;
  constraint->post([&] {
    legal = constraint->after(tokens("aa"));
    late.set_value();
  });
  release.set_value();
  late.get_future().wait();
  EXPECT_TRUE(legal->has('a'));
  EXPECT_EQ(constraint->soon(tokens("aa")), legal);
  EXPECT_EQ(constraint->masks(), 1) << "computed once";
  const auto alone = *GrammarConstraint::of(compiled, {});
  EXPECT_TRUE(alone->soon(tokens("a")).value()->may_end) << "without threads it waits";
  EXPECT_EQ(alone->soon(tokens("b")).value(), nullptr) << "an illegal path";
}

TEST_F(Constraints, CompileOncePerClient) {
  const GrammarSpec spec{Kind::kRegex, "a", ""};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(grammars_.constraint("x", tokenizer_, {kEnd}, spec).ok());
  }
  EXPECT_EQ(grammars_.compiled(), 1);
  EXPECT_TRUE(grammars_.constraint("y", tokenizer_, {kEnd}, spec).ok());
  EXPECT_EQ(grammars_.compiled(), 2);
  for (int i = 0; i < 100; ++i) {
    const GrammarSpec other{Kind::kRegex, "b" + std::to_string(i), ""};
    EXPECT_TRUE(grammars_.constraint("x", tokenizer_, {kEnd}, other).ok());
  }
  EXPECT_TRUE(grammars_.constraint("x", tokenizer_, {kEnd}, spec).ok());
  EXPECT_EQ(grammars_.compiled(), 103) << "the oldest were dropped";
}

}  // namespace
}  // namespace tandem
