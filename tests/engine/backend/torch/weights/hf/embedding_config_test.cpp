#include "engine/backend/torch/weights/hf/embedding_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr char kPooling[] = "1_Pooling/config.json";

std::string module_list(const std::string& names) {
  return R"([{"idx": 0, "type": "sentence_transformers.models.Transformer"},
             {"idx": 1, "type": "sentence_transformers.models.Pooling"})" +
         names + "]";
}

std::string error(const std::string& file, const std::string& text) {
  const test::TempDir folder;
  folder.write(file, text);
  const auto loaded = load_embedding_config(folder.path());
  EXPECT_TRUE(absl::IsInvalidArgument(loaded.status())) << text;
  return std::string(loaded.status().message());
}

TEST(EmbeddingConfig, TheLastTokenWithoutFiles) {
  const test::TempDir folder;
  const auto loaded = load_embedding_config(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->pooling, Pooling::kLast);
  EXPECT_TRUE(loaded->normalize);
  EXPECT_TRUE(loaded->prompts.empty());
}

TEST(EmbeddingConfig, FilesOfSentenceTransformers) {
  const struct {
    const char* field;
    Pooling pooling;
  } modes[] = {{"pooling_mode_lasttoken", Pooling::kLast},
               {"pooling_mode_mean_tokens", Pooling::kMean},
               {"pooling_mode_cls_token", Pooling::kFirst}};
  for (const auto& [field, pooling] : modes) {
    const test::TempDir folder;
    folder.write(kPooling, std::string(R"({"pooling_mode_max_tokens": false, ")") + field +
                               R"(": true, "include_prompt": true})");
    folder.write("modules.json", module_list(""));
    folder.write("config_sentence_transformers.json",
                 R"({"prompts": {"query": "Find: ", "document": ""},
                     "default_prompt_name": "query"})");
    const auto loaded = load_embedding_config(folder.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->pooling, pooling) << field;
    EXPECT_FALSE(loaded->normalize) << "no such module";
    EXPECT_THAT(loaded->prompts, ElementsAre(Pair("document", ""), Pair("query", "Find: ")));
    EXPECT_EQ(loaded->default_prompt, "query");
    folder.write("modules.json",
                 module_list(R"(,{"type": "sentence_transformers.models.Normalize"})"));
    EXPECT_TRUE(load_embedding_config(folder.path())->normalize);
  }
}

TEST(EmbeddingConfig, WhatWouldChangeTheEmbeddingIsRefused) {
  EXPECT_THAT(error(kPooling, R"({"pooling_mode_max_tokens": true})"),
              HasSubstr("pooling_mode_max_tokens"));
  EXPECT_THAT(error(kPooling, R"({"pooling_mode_lasttoken": true, "include_prompt": false})"),
              HasSubstr("include_prompt"));
  EXPECT_THAT(error(kPooling, "{}"), HasSubstr("pooling modes that are true: 0"));
  EXPECT_THAT(
      error(kPooling, R"({"pooling_mode_lasttoken": true, "pooling_mode_cls_token": true})"),
      HasSubstr("pooling modes that are true: 2"));
  EXPECT_THAT(error("modules.json", module_list(R"(,{"type": "a.models.Dense"})")),
              HasSubstr("a.models.Dense"));
  EXPECT_THAT(error("modules.json", "3"), HasSubstr("a list of modules"));
  EXPECT_THAT(error("modules.json", "[]}"), HasSubstr("modules.json"));
  EXPECT_THAT(error("config_sentence_transformers.json", R"({"prompts": {"a": 1}})"),
              HasSubstr("prompts"));
  EXPECT_THAT(error("config_sentence_transformers.json", R"({"default_prompt_name": "x"})"),
              HasSubstr("default_prompt_name"));
}

}  // namespace
}  // namespace tandem
