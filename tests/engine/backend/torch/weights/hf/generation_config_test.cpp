#include "engine/backend/torch/weights/hf/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/backend/torch/weights/files.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

GenerationDefaults good(const std::string& text) {
  const auto parsed = parse_generation_config(text, "g.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(GenerationDefaults{});
}

// Of a request that sets nothing.
SamplingParams sampling(const std::string& text) {
  return resolve_sampling({}, good(text).sampling);
}

std::string error(const std::string& text) {
  const auto parsed = parse_generation_config(text, "g.json");
  EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << text;
  return std::string(parsed.status().message());
}

TEST(GenerationConfig, GreedyByDefault) {
  for (const char* text : {"{}", R"({"do_sample": false, "temperature": 0.6, "top_p": 0.9})",
                           R"({"temperature": 0.6, "top_k": 20, "min_p": 0.1})"}) {
    const SamplingParams d = sampling(text);
    EXPECT_EQ(d.temperature, 0);
    EXPECT_EQ(d.top_k, 0);
    EXPECT_EQ(d.top_p, 1);
    EXPECT_EQ(d.min_p, 0);
    EXPECT_EQ(d.typical_p, 1);
  }
}

TEST(GenerationConfig, ProcessorsSamplingOrNot) {
  for (const char* sample : {"true", "false"}) {
    const GenerationDefaults d = good(std::string(R"({"do_sample": )") + sample +
                                      R"(, "repetition_penalty": 1.25, "min_new_tokens": 3,
                                          "bad_words_ids": [[7], [5, 6], [9]]})");
    EXPECT_EQ(d.sampling.repetition_penalty, 1.25);
    EXPECT_EQ(d.min_new_tokens, 3);
    EXPECT_THAT(d.sampling.bad_token_ids, ElementsAre(7, 9));
    EXPECT_THAT(d.not_applied, ElementsAre("bad_words_ids of several tokens: [[5,6]]"));
  }
  const GenerationDefaults none = good(R"({"repetition_penalty": null, "bad_words_ids": null})");
  EXPECT_EQ(none.sampling.repetition_penalty, 1);
  EXPECT_EQ(none.min_new_tokens, 0);
  EXPECT_THAT(none.sampling.bad_token_ids, IsEmpty());
  EXPECT_EQ(sampling(R"({"do_sample": true, "typical_p": 0.5})").typical_p, 0.5);
  EXPECT_EQ(sampling(R"({"typical_p": 0.5})").typical_p, 1);
}

TEST(GenerationConfig, Sampling) {
  const SamplingParams some = sampling(
      R"({"do_sample": true, "temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.25})");
  EXPECT_EQ(some.temperature, 0.5);
  EXPECT_EQ(some.top_k, 20);
  EXPECT_EQ(some.top_p, 0.75);
  EXPECT_EQ(some.min_p, 0.25);
  const SamplingParams none = sampling(R"({"do_sample": true, "top_k": null})");
  EXPECT_EQ(none.temperature, 1);
  EXPECT_EQ(none.top_k, 50);
  EXPECT_EQ(none.top_p, 1);
  EXPECT_EQ(none.min_p, 0);
}

TEST(GenerationConfig, TokensAndLengths) {
  const GenerationDefaults one = good(R"({"eos_token_id": 2, "max_new_tokens": 2048})");
  EXPECT_THAT(one.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(one.max_new_tokens, 2048);
  EXPECT_THAT(good(R"({"eos_token_id": [151645, 151643]})").eos_token_ids,
              ElementsAre(151645, 151643));
  EXPECT_THAT(good(R"({"eos_token_id": null})").eos_token_ids, IsEmpty());
  EXPECT_FALSE(good("{}").max_new_tokens.has_value());
}

TEST(GenerationConfig, ReportsSettingsThatAreNotApplied) {
  EXPECT_THAT(good(R"({"length_penalty": 1.05, "num_beams": 1, "typical_p": 1.0,
                       "no_repeat_ngram_size": 0, "max_length": 20, "bad_words_ids": null,
                       "early_stopping": false, "use_cache": true, "suppress_tokens": [],
                       "transformers_version": "5.0", "_from_model_config": true,
                       "pad_token_id": 0})")
                  .not_applied,
              ElementsAre("length_penalty: 1.05"));
  EXPECT_THAT(good(R"({"max_length": 4096, "num_beams": 4, "suppress_tokens": [1]})").not_applied,
              ElementsAre("max_length: 4096", "num_beams: 4", "suppress_tokens: [1]"));
}

// The file's range, default and flag of each parameter are those of its row.
TEST(GenerationConfig, EveryParameterOfTheTable) {
  for (const SamplingParameter& p : kSamplingParameters) {
    const auto file = [&](double value) {
      const std::string text =
          p.integer ? std::to_string(static_cast<int64_t>(value)) : std::to_string(value);
      return "{\"do_sample\": true, \"" + std::string(p.name) + "\": " + text + "}";
    };
    const double inside = p.integer ? 7 : (p.min + p.max) / 2;
    const GenerationDefaults d = good(file(inside));
    if (!p.in_generation_config) {
      EXPECT_FALSE((d.sampling.*p.member).has_value()) << p.name;
      EXPECT_THAT(good(file(0.25)).not_applied, ElementsAre(std::string(p.name) + ": 0.25"));
      continue;
    }
    EXPECT_EQ(d.sampling.*p.member, inside) << p.name;
    EXPECT_THAT(d.not_applied, IsEmpty()) << p.name;
    EXPECT_EQ(good(R"({"do_sample": true})").sampling.*p.member, p.file_default) << p.name;
    const std::string greedy = file(inside).replace(14, 4, "false");
    EXPECT_EQ((good(greedy).sampling.*p.member).has_value(), !p.warper) << p.name;
    EXPECT_THAT(error(file(p.min - 1)), HasSubstr(p.name));
    EXPECT_THAT(error(file(p.file_max + 1)), HasSubstr(p.name));
  }
}

TEST(GenerationConfig, Errors) {
  EXPECT_EQ(error(R"({"temperature": -0.5})"),
            "g.json: temperature: -0.5; allowed: numbers from 0 to 10000");
  EXPECT_THAT(error(R"({"do_sample": true, "top_p": 2})"), HasSubstr("top_p: 2; allowed: numbers"));
  EXPECT_THAT(error(R"({"top_k": -1})"), HasSubstr("top_k: -1"));
  EXPECT_THAT(error(R"({"top_k": 1.5})"), HasSubstr("top_k: 1.5; allowed: integers"));
  EXPECT_THAT(error(R"({"min_p": 1.5})"), HasSubstr("min_p: 1.5"));
  EXPECT_THAT(error(R"({"typical_p": -1})"), HasSubstr("typical_p: -1"));
  EXPECT_EQ(error(R"({"repetition_penalty": 0})"),
            "g.json: repetition_penalty: 0; allowed: numbers from 0.01 to 100");
  EXPECT_THAT(error(R"({"min_new_tokens": -1})"), HasSubstr("min_new_tokens: -1"));
  for (const char* words : {"3", "[3]", "[[]]", R"([["a"]])", "[[-1]]", "[[1.5]]", "{}"}) {
    EXPECT_EQ(
        error(std::string(R"({"bad_words_ids": )") + words + "}"),
        std::string("g.json: bad_words_ids: ") + words + "; allowed: a list of lists of token ids");
  }
  EXPECT_THAT(error(R"({"do_sample": "yes"})"), HasSubstr("do_sample: \"yes\""));
  EXPECT_THAT(error(R"({"max_new_tokens": 0})"), HasSubstr("max_new_tokens: 0"));
  EXPECT_THAT(error(R"({"eos_token_id": ["2"]})"), HasSubstr("eos_token_id: [\"2\"]"));
  EXPECT_THAT(error("[]"), HasSubstr("g.json: []; allowed: a JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("g.json: not JSON"));
}

TEST(GenerationConfig, Files) {
  const test::TempDir dir;
  const auto absent = load_generation_config(dir.path());
  ASSERT_TRUE(absent.ok());
  EXPECT_FALSE(absent->sampling.temperature.has_value());
  EXPECT_EQ(resolve_sampling({}, absent->sampling).temperature, 0);
  dir.write("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(load_generation_config(dir.path())->sampling.temperature, 1);
  dir.write("generation_config.json", "no");
  EXPECT_FALSE(load_generation_config(dir.path()).ok());
  const auto golden =
      load_generation_config(std::string(TANDEM_SOURCE_DIR) + "/tests/data/golden_models/llama3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  EXPECT_THAT(golden->eos_token_ids, ElementsAre(2));
  EXPECT_THAT(golden->not_applied, IsEmpty());
}

}  // namespace
}  // namespace tandem
