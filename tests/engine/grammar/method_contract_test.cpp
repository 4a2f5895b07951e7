// Constraints by random grammars under every method (tests/engine/decode/constraint_contract.h).
//
// Half of them are regular expressions, and std::regex has a second opinion on whole answers. The
// others are context-free and recursive. Models have a token for each byte.
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/grammar/grammar_constraint.h"
#include "tests/engine/decode/constraint_contract.h"

namespace tandem::test {
namespace {

constexpr Token kEnd = 256;  // of Tokenizer::bytes()

char letter(Rng& rng) { return static_cast<char>('a' + between(rng, 0, 4)); }

std::string random_regex(Rng& rng, int depth) {
  if (depth == 0 || chance(rng, 20)) {
    if (chance(rng, 70)) return std::string(1, letter(rng));
    return chance(rng, 50) ? "[abc]" : "[c-e]";
  }
  switch (between(rng, 0, 3)) {
    case 0:
      return absl::StrCat("(", random_regex(rng, depth - 1), "|", random_regex(rng, depth - 1),
                          ")");
    case 1: {
      const char* const times[] = {"?", "*", "+", "{2}", "{1,3}"};
      return absl::StrCat("(", random_regex(rng, depth - 1), ")", times[between(rng, 0, 4)]);
    }
    default:
      return absl::StrCat(random_regex(rng, depth - 1), random_regex(rng, depth - 1));
  }
}

// Each rule has an alternative that ends.
std::string random_lark(Rng& rng) {
  const int rules = between(rng, 1, 4);
  std::string text;
  for (int i = 0; i < rules; ++i) {
    absl::StrAppend(&text, i == 0 ? "start" : absl::StrCat("r", i), ": \"",
                    std::string(1, letter(rng)), "\"");
    for (int alternatives = between(rng, 1, 3); alternatives > 0; --alternatives) {
      absl::StrAppend(&text, " |");
      for (int parts = between(rng, 1, 3); parts > 0; --parts) {
        const int rule = between(rng, 0, rules - 1);
        if (chance(rng, 40)) {
          absl::StrAppend(&text, rule == 0 ? " start" : absl::StrCat(" r", rule));
        } else if (chance(rng, 30)) {
          absl::StrAppend(&text, " /", random_regex(rng, 1), "/");
        } else {
          absl::StrAppend(&text, " \"", std::string(1, letter(rng)), "\"");
        }
      }
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

const std::shared_ptr<const GrammarVocabulary>& vocabulary() {
  static const auto& words = *new std::shared_ptr<const GrammarVocabulary>(
      *GrammarVocabulary::of(*Tokenizer::bytes(), {kEnd}));
  return words;
}

CaseConstraint constraint_of(GrammarMatcher start) {
  const auto grammar = std::make_shared<const CompiledGrammar>(vocabulary(), std::move(start));
  return {[grammar] { return *GrammarConstraint::of(grammar, {}); }, nullptr};
}

Constraints random_grammars() {
  const auto make = [](Rng& rng, const AutomatonShape&) {
    for (;;) {
      const bool regular = chance(rng, 50);
      const std::string text = regular ? random_regex(rng, 3) : random_lark(rng);
      absl::StatusOr<GrammarMatcher> start = vocabulary()->compile(
          {regular ? GrammarSpec::Kind::kRegex : GrammarSpec::Kind::kGrammar, text, ""});
      if (!start.ok()) {
        // A terminal that matches the empty text, for example.
        EXPECT_TRUE(absl::IsInvalidArgument(start.status())) << start.status();
        continue;
      }
      CaseConstraint out = constraint_of(*std::move(start));
      if (regular) {
        out.matches = [text](const Tokens& tokens) {
          return std::regex_match(std::string(tokens.begin(), tokens.end()), std::regex(text));
        };
      }
      return out;
    }
  };
  return {make, kEnd + 1, {kEnd}, false};
}

// Answers of a few "a" that end with "d", or with "b" and an error: what follows is fixed and
// endless.
Constraints endless_fixed_text() {
  const auto make = [](Rng&, const AutomatonShape&) {
    const char* const text = "start: \"a\" start | \"b\" c | \"d\"\nc: \"c\" c";
    return constraint_of(*vocabulary()->compile({GrammarSpec::Kind::kGrammar, text, ""}));
  };
  return {make, kEnd + 1, {kEnd}, false};
}

Outcome under_grammars(const MethodCase& method, int n) {
  const Outcome seen = expect_constrained_ar(method, n, random_grammars());
  testing::Test::RecordProperty("cases", std::to_string(seen.cases));
  testing::Test::RecordProperty("preempted", std::to_string(seen.preempted));
  testing::Test::RecordProperty("cancelled", std::to_string(seen.cancelled));
  testing::Test::RecordProperty("without_legal_token", std::to_string(seen.dead));
  return seen;
}

TEST(MethodContract, Speculative) {
  const Outcome seen = under_grammars(speculative_case(), 240);
  EXPECT_GT(seen.preempted, kSanitized ? 0 : 3);
  EXPECT_GT(seen.cancelled, kSanitized ? 0 : 2);
  EXPECT_GT(seen.drafted, cases(100));
}

TEST(MethodContract, SpeculativeByRatio) { under_grammars(ratio_case(), 80); }

TEST(MethodContract, Ngram) { under_grammars(ngram_case(), 160); }

TEST(MethodContract, Bild) {
  for (const bool exact : {true, false}) under_grammars(bild_case(exact), 120);
}

TEST(MethodContract, Bita) { under_grammars(bita_case(), 160); }

TEST(MethodContract, Ppd) { EXPECT_GT(under_grammars(ppd_case(), 120).drafted, cases(10)); }

TEST(MethodContract, LlmToSlm) { under_grammars(llm_to_slm_case(), 120); }

TEST(MethodContract, Beam) { under_grammars(beam_case(), 80); }

// An error ends the same request after the same tokens, also where drafts came first.
TEST(EndlessFixedText, EndsEachMethodAlike) {
  for (const MethodCase& method : {ngram_case(), speculative_case(), bita_case()}) {
    EXPECT_GT(expect_constrained_ar(method, 24, endless_fixed_text()).dead, 0);
  }
}

}  // namespace
}  // namespace tandem::test
