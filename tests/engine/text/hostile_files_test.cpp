// Invalid tokenizer files and texts are refused or handled safely.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "engine/text/tokenizer.h"
#include "tests/engine/text/test_data.h"
#include "tests/sanitized.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

absl::Status load_status(std::string_view tokenizer_json, std::string_view config = "{}") {
  test::TemporaryModel model;
  model.write("tokenizer.json", tokenizer_json).write("tokenizer_config.json", config);
  return Tokenizer::load(model.path()).status();
}

json small_file() {
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"model", {{"type", "WordLevel"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"unk_token", "a"}}}};
}

TEST(HostileFiles, TheSmallFileItselfIsFine) { EXPECT_TRUE(load_status(small_file().dump()).ok()); }

TEST(HostileFiles, MissingFile) {
  test::TemporaryModel model;
  const absl::Status status = Tokenizer::load(model.path()).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(status.message(), HasSubstr(model.path() + "/tokenizer.json"));
  EXPECT_TRUE(absl::IsNotFound(Tokenizer::load("/no/such/directory").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::load("/bad\xff").status()));
}

TEST(HostileFiles, BrokenTokenizers) {
  const auto with = [](const char* field, json value) {
    json file = small_file();
    file[field] = std::move(value);
    return file.dump();
  };
  const json bad_decoder = {{"type", "Sequence"}, {"decoders", {{{"type", "Nothing"}}}}};
  const std::string cases[] = {
      "",
      "{",
      "[]",
      "null",
      "\xff\xfe",
      "{\"model\": 1}",
      small_file().dump().substr(0, 60),
      std::string(1'000'000, '['),
      std::string(1'000'000, '[') + std::string(1'000'000, ']'),
      "{\"model\":" + std::string(1'000'000, '{'),
      with("model", {{"type", "Quantum"}, {"vocab", {{"a", 0}}}}),
      with("model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", {"a zz"}}}),
      with("model", {{"type", "WordLevel"}, {"vocab", {{"a", -1}}}, {"unk_token", "a"}}),
      with("model", {{"type", "WordLevel"}, {"vocab", json::object()}, {"unk_token", "a"}}),
      with("model", {{"type", "WordLevel"}, {"vocab", {{"a", 4294967295u}}}, {"unk_token", "a"}}),
      with("model", {{"type", "Unigram"}, {"unk_id", 7}, {"vocab", {{"a", 0.0}}}}),
      with("decoder", {{"type", "Nothing"}}),
      with("decoder", 7),
      with("decoder", bad_decoder),
      with("pre_tokenizer", {{"type", "Split"},
                             {"pattern", {{"Regex", "(((("}}},
                             {"behavior", "Isolated"},
                             {"invert", false}}),
      with("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}),
      with("added_tokens", "x"),
      with("added_tokens", {{{"id", 99}, {"content", 7}}}),
  };
  for (const std::string& text : cases) {
    SCOPED_TRACE(text.substr(0, 150));
    const absl::Status status = load_status(text);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("tokenizer.json"));
    EXPECT_LT(status.message().size(), 2000u);
  }
}

// The post-processor repeats ids in the file, which may differ from the vocabulary's.
TEST(HostileFiles, PostProcessorWithOtherTokens) {
  json file = small_file();
  const auto status_with = [&](int id) {
    file["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "b"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", json::array()},
        {"special_tokens", {{"b", {{"id", "b"}, {"ids", {id}}, {"tokens", {"b"}}}}}}};
    return load_status(file.dump());
  };
  EXPECT_TRUE(status_with(1).ok()) << status_with(1);
  for (const int id : {2, 2147483647}) {
    const absl::Status status = status_with(id);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("tokenizer.json"));
    EXPECT_THAT(status.message(), HasSubstr("post_processor: adds token " + std::to_string(id)));
  }
}

TEST(HostileFiles, PostProcessorWithTokensThatItDoesNotDescribe) {
  json file = small_file();
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "b"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                            {"pair", json::array()},
                            {"special_tokens", json::object()}};
  const absl::Status status = load_status(file.dump());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("special_tokens"));
}

TEST(HostileFiles, BrokenConfigurations) {
  const std::string cases[] = {
      "",
      "{",
      "[]",
      std::string(1'000'000, '['),
      R"({"bos_token": 7})",
      R"({"bos_token": {"lstrip": true}})",
      R"({"bos_token": {"content": "x", "lstrip": 1}})",
      R"({"extra_special_tokens": [7]})",
      R"({"added_tokens_decoder": []})",
      R"({"added_tokens_decoder": {"-1": {"content": "x"}}})",
      R"({"added_tokens_decoder": {"0": "x", "1": 3}})",
  };
  for (const std::string& text : cases) {
    SCOPED_TRACE(text.substr(0, 100));
    const absl::Status status = load_status(small_file().dump(), text);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("tokenizer_config.json"));
  }
}

class HostileTexts : public ::testing::TestWithParam<std::string> {};

// A quadratic algorithm would exceed ctest's time limit.
TEST_P(HostileTexts, LongRunsInSensibleTime) {
  const auto tokenizer = test::golden_tokenizer(GetParam());
  constexpr size_t kThousand = test::kSanitized ? 100 : 1000;
  const std::string texts[] = {
      std::string(1000 * kThousand, 'a'), std::string(50 * kThousand, '_'),
      std::string(1000 * kThousand, ' '), std::string(200 * kThousand, '\n'),
      std::string(100 * kThousand, '\0'), std::string(100 * kThousand, '7'),
  };
  for (const std::string& text : texts) {
    SCOPED_TRACE(static_cast<int>(text[0]));
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = tokenizer->encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const auto decoded = tokenizer->decode(*ids, true);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    if (GetParam() == "gpt2" || GetParam() == "llama3" || GetParam() == "llama2") {
      EXPECT_TRUE(*decoded == text) << "the round trip differs";
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %zu x %d: %.2f s\n", GetParam().c_str(), text.size(), text[0], time.count());
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileTexts, ::testing::ValuesIn(test::tokenizer_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace tandem
