#include "engine/text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/engine/text/test_data.h"

namespace tandem {
namespace {

using Kind = GrammarSpec::Kind;
using testing::HasSubstr;
using testing::StartsWith;

constexpr Token kEnd = 256;  // of Tokenizer::bytes()

class Grammar : public testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::bytes();
  std::shared_ptr<const GrammarVocabulary> words_ = *GrammarVocabulary::of(*tokenizer_, {kEnd});

  absl::StatusOr<GrammarMatcher> compile(Kind kind, std::string text, std::string whitespace = "") {
    return words_->compile({kind, std::move(text), std::move(whitespace)});
  }
  std::string error(Kind kind, std::string text) {
    const auto compiled = compile(kind, std::move(text));
    EXPECT_TRUE(absl::IsInvalidArgument(compiled.status())) << compiled.status();
    return std::string(compiled.status().message());
  }
  static std::vector<Token> tokens(const std::string& text) {
    return std::vector<Token>(text.begin(), text.end());
  }
  // Does the grammar match the whole text?
  bool accepts(Kind kind, const std::string& grammar, const std::string& text) {
    absl::StatusOr<GrammarMatcher> m = compile(kind, grammar);
    if (!m.ok()) {
      ADD_FAILURE() << m.status();
      return false;
    }
    const std::vector<Token> path = tokens(text);
    if (*m->advance(path) != path.size()) return false;
    std::vector<uint32_t> bits(words_->mask_words());
    return *m->mask(bits);
  }
  static bool has(const std::vector<uint32_t>& bits, Token t) {
    return (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
  }
};

TEST_F(Grammar, JsonSchemas) {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"enum":["x","y"]}},"required":["a"],"additionalProperties":false})";
  EXPECT_TRUE(accepts(Kind::kJsonSchema, schema, R"({"a": 12, "b": "y"})"));
  EXPECT_TRUE(accepts(Kind::kJsonSchema, schema, R"({"a":-1})"));
  EXPECT_FALSE(accepts(Kind::kJsonSchema, schema, R"({"b":"x"})"));
  EXPECT_FALSE(accepts(Kind::kJsonSchema, schema, R"({"a":1.5})"));
  EXPECT_FALSE(accepts(Kind::kJsonSchema, schema, R"({"a":1)"));
  EXPECT_TRUE(accepts(Kind::kJsonObject, "", R"({"k": [1, {"x": null}]})"));
  EXPECT_FALSE(accepts(Kind::kJsonObject, "", "[1]"));
  EXPECT_TRUE(accepts(Kind::kJsonSchema, "true", "[1]"));
}

// A name has one spelling and occurs once, so each answer is valid by JSON Schema.
TEST_F(Grammar, MembersAreNotNamedByEscapes) {
  const std::string schema = R"({"properties":{"a":{"type":"string"}}})";
  EXPECT_TRUE(accepts(Kind::kJsonSchema, schema, R"({"b":1,"\n":2})"));
  EXPECT_FALSE(accepts(Kind::kJsonSchema, schema, R"({"\u0061":1})"));
  const std::string pattern = R"({"patternProperties":{"^a":{"type":"string"}}})";
  EXPECT_TRUE(accepts(Kind::kJsonSchema, pattern, R"({"b":1,"ab":"x"})"));
  EXPECT_FALSE(accepts(Kind::kJsonSchema, pattern, R"({"\u0061b":1})"));
  EXPECT_FALSE(accepts(
      Kind::kStructuralTag,
      R"({"triggers":["<"],"structures":[{"begin":"<","end":">","schema":)" + schema + "}]}",
      R"(<{"\u0061":1}>)"));
}

TEST_F(Grammar, RepeatedNamesDoNotCount) {
  EXPECT_TRUE(accepts(Kind::kJsonSchema, R"({"minProperties":1})", R"({"a":1})"));
  EXPECT_TRUE(
      accepts(Kind::kJsonSchema, R"({"required":["a"],"minProperties":2})", R"({"a":1,"b":1})"));
  EXPECT_FALSE(
      accepts(Kind::kJsonSchema, R"({"required":["a"],"minProperties":2})", R"({"a":1,"a":1})"));
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"items":{"minProperties":2}})"),
            "json_schema: /items/minProperties: supported up to the number of required names plus "
            "one, or with additionalProperties: false");
}

TEST_F(Grammar, WhitespaceIsBounded) {
  EXPECT_TRUE(accepts(Kind::kJsonObject, "", "{" + std::string(32, ' ') + "}"));
  EXPECT_FALSE(accepts(Kind::kJsonObject, "", "{" + std::string(33, ' ') + "}"));
  absl::StatusOr<GrammarMatcher> m = compile(Kind::kJsonObject, "", "_");
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(*m->validate(tokens("{_}")), 3U);
  EXPECT_EQ(*m->validate(tokens("{ }")), 1U);
}

TEST_F(Grammar, RegularExpressionsMatchTheWholeText) {
  EXPECT_TRUE(accepts(Kind::kRegex, "[a-c]+d?", "abcd"));
  EXPECT_FALSE(accepts(Kind::kRegex, "[a-c]+d?", "d"));
  EXPECT_FALSE(accepts(Kind::kRegex, "[a-c]+d?", "abcdd"));
  EXPECT_TRUE(accepts(Kind::kRegex, "a/b", "a/b"));
}

TEST_F(Grammar, ChoicesMayBeginEachOther) {
  const std::string choice = R"(["no", "not", "\"yes\"\n"])";
  for (const char* text : {"no", "not", "\"yes\"\n"}) {
    EXPECT_TRUE(accepts(Kind::kChoice, choice, text)) << text;
  }
  EXPECT_FALSE(accepts(Kind::kChoice, choice, "n"));
  EXPECT_FALSE(accepts(Kind::kChoice, choice, "nots"));
}

TEST_F(Grammar, Lark) {
  const std::string sum = "start: NUM (\"+\" NUM)*\nNUM: /[0-9]+/\n";
  EXPECT_TRUE(accepts(Kind::kGrammar, sum, "1+22+3"));
  EXPECT_FALSE(accepts(Kind::kGrammar, sum, "1+"));
  const std::string inline_json = "start: \"<\" %json {\"type\":\"integer\"} \">\"\n";
  EXPECT_TRUE(accepts(Kind::kGrammar, inline_json, "<5>"));
}

TEST_F(Grammar, Gbnf) {
  const std::string list = R"(# a comment
root ::= "[" ws (item ("," ws item)*)? "]"
item ::= [a-z]{1,3} | "\"" [^"\n] "\"" | root
ws ::= [ \t]*
)";
  for (const char* text : {"[]", "[ab]", "[ a, \"x\",[b]]", "[[[]]]"}) {
    EXPECT_TRUE(accepts(Kind::kGrammar, list, text)) << text;
  }
  for (const char* text : {"[abcd]", "[", "[a,]", "[\"\n\"]"}) {
    EXPECT_FALSE(accepts(Kind::kGrammar, list, text)) << text;
  }
  EXPECT_TRUE(accepts(Kind::kGrammar, "root ::= \"a\" \"b\" | \"ab\" \"c\"", "ab"));
  EXPECT_TRUE(accepts(Kind::kGrammar, "root ::= \"a\" \"b\" | \"ab\" \"c\"", "abc"));
  EXPECT_TRUE(accepts(Kind::kGrammar, "root ::= x-y\nx-y ::=\n  \"1\" |\n  \"2\"\n", "2"));
  EXPECT_TRUE(accepts(Kind::kGrammar, "root ::= \"\\x41\" .", "A\n"));
  EXPECT_THAT(error(Kind::kGrammar, "root ::= \"a\" other"), HasSubstr("\"other\""));
  EXPECT_THAT(error(Kind::kGrammar, "x ::= \"a\""), HasSubstr("\"root\""));
  EXPECT_THAT(error(Kind::kGrammar, "root ::= \"a\"\nb ::= [a"), HasSubstr("line 2"));
  EXPECT_THAT(error(Kind::kGrammar, "root ::= " + std::string(100, '(')), HasSubstr("nested"));
}

TEST_F(Grammar, StructuralTags) {
  const std::string tag = R"({"structures":[{"begin":"<f=a>","schema":{"type":"integer"},
      "end":"</f>"},{"begin":"<f=b>","schema":{"type":"null"},"end":"</f>"}],"triggers":["<f="]})";
  EXPECT_TRUE(accepts(Kind::kStructuralTag, tag, "some text"));
  EXPECT_TRUE(accepts(Kind::kStructuralTag, tag, "call <f=a>12</f> and <f=b>null</f>."));
  EXPECT_FALSE(accepts(Kind::kStructuralTag, tag, "call <f=a>x"));
  EXPECT_FALSE(accepts(Kind::kStructuralTag, tag, "call <f=c"));
  EXPECT_FALSE(accepts(Kind::kStructuralTag, tag, "call <f=a>12"));
  EXPECT_THAT(error(Kind::kStructuralTag, R"({"triggers":["x"]})"), HasSubstr("structures"));
  EXPECT_THAT(error(Kind::kStructuralTag, R"({"format":{},"triggers":["x"],"structures":
      [{"begin":"x","schema":{},"end":""}]})"),
              HasSubstr("format"));
}

TEST_F(Grammar, RefusesWhatItDoesNotImplementByPath) {
  EXPECT_EQ(error(Kind::kJsonSchema,
                  R"({"type":"object","properties":{"a/b":{"type":"array","uniqueItems":true}}})"),
            "json_schema: /properties/a~1b/uniqueItems: keyword not supported");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"anyOf":[{"type":"null"},{"not":{"type":"null"}}]})"),
            "json_schema: /anyOf/1/not: keyword not supported");
  EXPECT_EQ(error(Kind::kJsonSchema,
                  R"({"$ref":"#/components/x","components":{"x":{"not":{},"if":{}}}})"),
            "json_schema: /components/x/not: keyword not supported");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"const":{"not":1},"items":{"format":"sound"}})"),
            "json_schema: /items/format: format not supported");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"items":{"oneOf":[{"minimum":1},{"maximum":5}]}})"),
            "json_schema: /items/oneOf: supported only if at most one branch can match");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"properties":{"a":{},"b":{}},"additionalProperties":false,
                      "minProperties":2})"),
            "json_schema: /minProperties: supported only if all members of properties are "
            "required");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"items":{"enum":["a","\u0001"]}})"),
            "json_schema: /items/enum: control characters not supported");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"items":{"$ref":"http://localhost/x.json"}})"),
            "json_schema: /items/$ref: supported only within the schema");
  EXPECT_EQ(error(Kind::kJsonSchema, R"({"x-guidance":{"lenient":true}})"),
            "json_schema: /x-guidance: keyword not supported");
  EXPECT_THAT(error(Kind::kJsonSchema, R"({"type":"sound"})"), HasSubstr("json_schema: "));
  EXPECT_THAT(error(Kind::kJsonSchema, "{"), HasSubstr("not JSON"));
  EXPECT_THAT(error(Kind::kJsonSchema, "123"), HasSubstr("a JSON object or boolean"));
  EXPECT_THAT(error(Kind::kRegex, "("), HasSubstr("regex: "));
  EXPECT_THAT(error(Kind::kChoice, "[]"), HasSubstr("choice: "));
  EXPECT_THAT(error(Kind::kGrammar, "start: other"), HasSubstr("grammar: "));
  EXPECT_THAT(compile(Kind::kJsonSchema, "{}", "(").status().message(),
              StartsWith("whitespace_pattern: "));
  EXPECT_THAT(compile(Kind::kJsonSchema, R"({"type":"sound"})", "_").status().message(),
              StartsWith("json_schema: "));
}

// After each "b" another one must follow, without end.
TEST_F(Grammar, EndsStepsThatTakeTooLong) {
  absl::StatusOr<GrammarMatcher> m = compile(Kind::kGrammar, R"(start: "a" /b+/ "b")");
  ASSERT_TRUE(m.ok());
  const absl::StatusOr<GrammarMatcher> start = m->copy();
  ASSERT_TRUE(start.ok());
  std::vector<uint32_t> bits(words_->mask_words());
  EXPECT_TRUE(absl::IsResourceExhausted(m->mask(bits).status()));
  EXPECT_TRUE(start->copy().ok());
}

TEST_F(Grammar, FollowsAndRollsBack) {
  absl::StatusOr<GrammarMatcher> m = compile(Kind::kRegex, "(ab|cd)+");
  ASSERT_TRUE(m.ok());
  std::vector<uint32_t> bits(words_->mask_words());
  EXPECT_FALSE(*m->mask(bits));
  EXPECT_TRUE(has(bits, 'a') && has(bits, 'c'));
  EXPECT_FALSE(has(bits, 'b') || has(bits, kEnd));
  EXPECT_EQ(*m->advance(tokens("abx")), 2U);
  EXPECT_TRUE(*m->mask(bits));
  EXPECT_TRUE(has(bits, kEnd));
  absl::StatusOr<GrammarMatcher> copy = m->copy();
  ASSERT_TRUE(m->rollback(1).ok());
  EXPECT_FALSE(*m->mask(bits));
  EXPECT_TRUE(has(bits, 'b') && !has(bits, 'a') && !has(bits, kEnd));
  EXPECT_TRUE(*copy->mask(bits)) << "a copy is independent";
  EXPECT_EQ(*m->validate(tokens("bcdab!")), 5U);
  EXPECT_EQ(*m->advance(tokens("b")), 1U) << "validate() consumes nothing";
}

// Both paths have one lexeme and then a part of X, and different lexemes follow.
TEST_F(Grammar, MasksAfterARollbackAreThoseOfTheNewPath) {
  absl::StatusOr<GrammarMatcher> m =
      compile(Kind::kGrammar, "start: \"a\" X \"b\" | \"c\" X \"d\"\nX: /x+/\n");
  ASSERT_TRUE(m.ok()) << m.status();
  std::vector<uint32_t> bits(words_->mask_words());
  ASSERT_EQ(*m->advance(tokens("ax")), 2U);
  EXPECT_FALSE(*m->mask(bits));
  EXPECT_TRUE(has(bits, 'x') && has(bits, 'b') && !has(bits, 'd'));
  ASSERT_TRUE(m->rollback(2).ok());
  ASSERT_EQ(*m->advance(tokens("cx")), 2U);
  EXPECT_FALSE(*m->mask(bits));
  EXPECT_TRUE(has(bits, 'x') && has(bits, 'd') && !has(bits, 'b'));
}

// Drafts may go on behind the end.
TEST_F(Grammar, NothingFollowsTheEnd) {
  absl::StatusOr<GrammarMatcher> m = compile(Kind::kRegex, "ab");
  std::vector<uint32_t> bits(words_->mask_words());
  const std::vector<Token> path = {'a', 'b', kEnd, kEnd, 'a'};
  EXPECT_LE(*m->advance(path), 3U);
  EXPECT_TRUE(*m->mask(bits));
  EXPECT_TRUE(has(bits, kEnd) && !has(bits, 'a'));
  EXPECT_EQ(*m->validate(tokens("a")), 0U);
  EXPECT_TRUE(m->forced().empty());
}

TEST_F(Grammar, ForcedTokensFollowTheGrammar) {
  absl::StatusOr<GrammarMatcher> m =
      compile(Kind::kJsonSchema,
              R"({"type":"object","properties":{"name":{"type":"null"}},"required":["name"],
          "additionalProperties":false})",
              "[ ]");
  ASSERT_TRUE(m.ok()) << m.status();
  ASSERT_EQ(*m->advance(tokens("{\"")), 2U);
  const std::vector<Token> forced = m->forced();
  EXPECT_GE(forced.size(), 4U);
  EXPECT_EQ(*m->advance(forced), forced.size());
  const std::vector<Token> name = tokens("name\"");
  EXPECT_TRUE(std::equal(forced.begin(), forced.end(), name.begin()));
}

// The limits are those of the crate; without them these take minutes or gigabytes.
TEST_F(Grammar, BombsAreRefusedOrBounded) {
  std::string nested = R"({"type":"integer"})";
  for (int i = 0; i < 200; ++i) nested = R"({"type":"array","items":)" + nested + "}";
  std::string deep = "a";
  for (int i = 0; i < 5000; ++i) deep = "(" + deep + ")";
  std::string chain = "start: A0\n";
  for (int i = 0; i < 1990; ++i) {
    chain += "A" + std::to_string(i) + ": \"(\" A" + std::to_string(i + 1) + " \")\"\n";
  }
  chain += "A1990: \"x\"\n";
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 3000; ++i) {
    wide +=
        (i ? ",\"k" : "\"k") + std::to_string(i) + "\":{\"type\":\"string\",\"maxLength\":9999}";
  }
  wide += "}}";
  const std::vector<std::pair<Kind, std::string>> bombs = {
      {Kind::kRegex, "((a{1,999}){1,999}){1,999}"},
      {Kind::kRegex, "(.*a){200}"},
      {Kind::kRegex, "(x+x+)+y"},
      {Kind::kRegex, "[ab]*a[ab]{4000}"},
      {Kind::kRegex, deep},
      {Kind::kRegex, "(\\pL{1,1000}){1,1000}"},
      {Kind::kJsonSchema, nested},
      {Kind::kJsonSchema, wide},
      {Kind::kJsonSchema, R"({"$ref":"#"})"},
      {Kind::kJsonSchema, R"({"anyOf":[{"$ref":"#/anyOf/1"},{"$ref":"#/anyOf/0"}]})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^(a|b|ab){1,5000}$"})"},
      {Kind::kJsonSchema, R"({"type":"array","minItems":100000000})"},
      {Kind::kJsonSchema, R"({"multipleOf":1e-300})"},
      {Kind::kGrammar, "start: " + std::string(100000, '(')},
      {Kind::kGrammar, chain},
      {Kind::kGrammar, "start: start start start | \"a\" | \"\""},
      {Kind::kGrammar, "root ::= root root | \"a\"{1,60000}"},
      {Kind::kChoice, std::string(600000, '[')},
  };
  for (const auto& [kind, text] : bombs) {
    absl::StatusOr<GrammarMatcher> m = compile(kind, text);
    if (!m.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(m.status())) << m.status();
      continue;
    }
    std::vector<uint32_t> bits(words_->mask_words());
    for (int step = 0; step < 40; ++step) {
      const absl::StatusOr<bool> end = m->mask(bits);
      if (!end.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(end.status())) << end.status();
        break;
      }
      Token t = 0;
      while (t < kEnd && !has(bits, t)) ++t;
      if (t == kEnd) break;
      if (!m->advance(std::vector<Token>{t}).ok()) break;
    }
  }
}

// Random legal tokens of real tokenizers, with byte fallback and special tokens: every text is JSON
// of the schema, and forced tokens are legal.
TEST(GrammarTokenizers, RandomWalksSatisfyTheSchema) {
  const GrammarSpec spec{Kind::kJsonSchema, R"({"type":"object","properties":{
      "name":{"type":"string","maxLength":6},"flags":{"type":"array","items":{"type":"boolean"},
      "maxItems":3},"n":{"type":"integer","minimum":-5,"maximum":99}},
      "required":["name","flags","n"],"additionalProperties":false})",
                         "[ ]?"};
  std::mt19937_64 rng(1);
  for (const char* name : {"gpt2", "llama3", "llama2", "t5"}) {
    const auto tokenizer = test::golden_tokenizer(name);
    Token end = tokenizer->vocab_size() - 1;
    while (end > 0 && !tokenizer->is_special(end)) --end;
    const auto words = *GrammarVocabulary::of(*tokenizer, {end});
    const absl::StatusOr<GrammarMatcher> start = words->compile(spec);
    ASSERT_TRUE(start.ok()) << start.status();
    for (int walk = 0; walk < 20; ++walk) {
      GrammarMatcher m = *start->copy();
      std::vector<uint32_t> bits(words->mask_words());
      std::string text;
      for (int step = 0;; ++step) {
        ASSERT_LT(step, 400);
        ASSERT_TRUE(m.mask(bits).ok());
        std::vector<Token> legal;
        for (Token t = 0; t < tokenizer->vocab_size(); ++t) {
          if (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) legal.push_back(t);
        }
        ASSERT_FALSE(legal.empty()) << name << ": " << text;
        const std::vector<Token> forced = m.forced();
        if (!forced.empty()) EXPECT_EQ(*m.validate(forced), forced.size());
        const Token t = legal[rng() % legal.size()];
        if (t == end) break;
        EXPECT_FALSE(tokenizer->is_special(t)) << name << ": " << t;
        ASSERT_EQ(*m.advance(std::vector<Token>{t}), 1U);
        text += tokenizer->token_bytes(t);
      }
      const auto json = nlohmann::json::parse(text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << name << ": " << text;
      EXPECT_EQ(json.size(), 3U) << text;
      EXPECT_LE(json["flags"].size(), 3U) << text;
      EXPECT_LE(json["n"].get<int>(), 99) << text;
    }
  }
}

// The masks of random walks against what the matcher consumes. A mask has a token only if the
// matcher consumes it. The reverse holds except where the text is fixed: there the mask has its
// first token in the tokenizer's own spelling alone, and the matcher consumes other spellings.
TEST(GrammarTokenizers, MasksAndMatchersDifferInSpellingsOnly) {
  const GrammarSpec spec{Kind::kJsonSchema, R"({"type":"object","properties":{
      "name":{"type":"string","pattern":"^(\\w+ ){0,3}\\w+$","maxLength":20},
      "kind":{"enum":["theater","theatre"]},"n":{"type":"number"}},
      "required":["name","kind","n"],"additionalProperties":false})",
                         "[ ]?"};
  std::mt19937_64 rng(2);
  int spelled_otherwise = 0;
  for (const char* name : {"gpt2", "llama3", "llama2", "t5"}) {
    const auto tokenizer = test::golden_tokenizer(name);
    Token end = tokenizer->vocab_size() - 1;
    while (end > 0 && !tokenizer->is_special(end)) --end;
    const auto words = *GrammarVocabulary::of(*tokenizer, {end});
    const absl::StatusOr<GrammarMatcher> start = words->compile(spec);
    ASSERT_TRUE(start.ok()) << start.status();
    for (int walk = 0; walk < 5; ++walk) {
      GrammarMatcher m = *start->copy();
      std::vector<uint32_t> bits(words->mask_words());
      for (int step = 0; step < 60; ++step) {
        const absl::StatusOr<bool> may_end = m.mask(bits);
        ASSERT_TRUE(may_end.ok());
        std::vector<Token> legal;
        std::vector<Token> consumed_only;
        for (Token t = 0; t < tokenizer->vocab_size(); ++t) {
          const bool has = (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
          const bool consumed = *m.validate(std::vector<Token>{t}) == 1;
          if (has) {
            legal.push_back(t);
            ASSERT_TRUE(t == end ? *may_end : consumed) << name << ": " << t;
          } else if (consumed) {
            consumed_only.push_back(t);
          }
        }
        ASSERT_FALSE(legal.empty());
        if (!consumed_only.empty()) {
          ASSERT_EQ(legal.size(), 1U) << name << ": the text is fixed";
          const std::string fixed = tokenizer->token_bytes(legal[0]);
          for (const Token t : consumed_only) {
            const std::string other = tokenizer->token_bytes(t);
            EXPECT_EQ(other.substr(0, fixed.size()), fixed.substr(0, other.size()));
          }
          spelled_otherwise += static_cast<int>(consumed_only.size());
        }
        const Token t = legal[rng() % legal.size()];
        if (t == end) break;
        ASSERT_EQ(*m.advance(std::vector<Token>{t}), 1U);
      }
    }
  }
  EXPECT_GT(spelled_otherwise, 20);
}

TEST(GrammarTokenizers, FixedTextHasTheTokenizersSpelling) {
  const auto tokenizer = test::golden_tokenizer("gpt2");
  const Token end = *tokenizer->token_id("<|endoftext|>");
  const auto words = *GrammarVocabulary::of(*tokenizer, {end});
  absl::StatusOr<GrammarMatcher> m =
      words->compile({Kind::kJsonSchema, R"({"const":"the theater"})", ""});
  ASSERT_TRUE(m.ok()) << m.status();
  const std::vector<Token> spelled =
      *tokenizer->encode("\"the theater\"", false, SpecialText::kPlain);
  std::vector<uint32_t> bits(words->mask_words());
  int longer = 0;
  for (const Token expected : spelled) {
    ASSERT_TRUE(m->mask(bits).ok());
    for (Token t = 0; t < tokenizer->vocab_size(); ++t) {
      const bool has = (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
      ASSERT_EQ(has, t == expected) << tokenizer->token_bytes(t);
    }
    const std::string bytes = tokenizer->token_bytes(expected);
    const std::vector<Token> letter = *tokenizer->encode(bytes.substr(0, 1), false);
    ASSERT_EQ(letter.size(), 1U);
    EXPECT_EQ(*m->validate(letter), 1U) << "the matcher consumes every spelling";
    longer += bytes.size() > 1 ? 1 : 0;
    ASSERT_EQ(*m->advance(std::vector<Token>{expected}), 1U);
  }
  EXPECT_GT(longer, 0);
  EXPECT_TRUE(*m->mask(bits));
}

TEST_F(Grammar, VocabulariesNeedEndTokens) {
  EXPECT_TRUE(absl::IsInvalidArgument(GrammarVocabulary::of(*tokenizer_, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(GrammarVocabulary::of(*tokenizer_, {257}).status()));
}

}  // namespace
}  // namespace tandem
