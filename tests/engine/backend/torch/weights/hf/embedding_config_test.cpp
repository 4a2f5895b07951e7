#include "engine/backend/torch/weights/hf/embedding_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/backend/torch/weights/files.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
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

TEST(EmbeddingConfig, DenseModules) {
  const std::string identity = "torch.nn.modules.linear.Identity";
  const auto config = [](int in, int out, bool bias, const std::string& activation) {
    return absl::StrCat(R"({"in_features": )", in, R"(, "out_features": )", out, R"(, "bias": )",
                        bias ? "true" : "false", R"(, "activation_function": ")", activation,
                        R"("})");
  };
  const std::string normalize = R"(,{"type": "sentence_transformers.models.Normalize"})";
  const auto dense = [](const std::string& path) {
    return R"(,{"type": "sentence_transformers.models.Dense", "path": ")" + path + R"("})";
  };
  const auto write = [](const test::TempDir& folder, const std::string& path,
                        const std::string& text, const std::vector<float>& weight, int in,
                        const std::vector<float>& bias) {
    const int out = static_cast<int>(weight.size()) / in;
    std::string tensors = absl::StrCat(R"({"linear.weight":{"dtype":"F32","shape":[)", out, ",", in,
                                       R"(],"data_offsets":[0,)", 4 * weight.size(), "]}");
    if (!bias.empty()) {
      absl::StrAppend(&tensors, R"(,"linear.bias":{"dtype":"F32","shape":[)", out,
                      R"(],"data_offsets":[)", 4 * weight.size(), ",",
                      4 * (weight.size() + bias.size()), "]}");
    }
    std::string data(reinterpret_cast<const char*>(weight.data()), 4 * weight.size());
    data.append(reinterpret_cast<const char*>(bias.data()), 4 * bias.size());
    folder.write(path + "/config.json", text);
    folder.write(path + "/model.safetensors", test::safetensors_file(tensors + "}", data));
  };
  const test::TempDir folder;
  folder.write("modules.json", module_list(dense("2_Dense") + dense("3_Dense") + normalize));
  write(folder, "2_Dense", config(2, 3, false, identity), {1, 2, 3, 4, 5, 6}, 2, {});
  write(folder, "3_Dense", config(3, 1, true, "torch.nn.modules.activation.Tanh"), {7, 8, 9}, 3,
        {10});
  const auto loaded = load_embedding_config(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->normalize);
  ASSERT_EQ(loaded->dense.size(), 2U);
  EXPECT_THAT(loaded->dense[0].weight, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_TRUE(loaded->dense[0].bias.empty() && !loaded->dense[0].tanh);
  EXPECT_THAT(loaded->dense[1].bias, ElementsAre(10));
  EXPECT_TRUE(loaded->dense[1].tanh);
  EXPECT_EQ(loaded->width(99), 1);

  const auto refused = [&](const std::string& modules) {
    folder.write("modules.json", module_list(modules));
    const absl::Status status = load_embedding_config(folder.path()).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(refused(dense("2_Dense") + dense("2_Dense")),
              HasSubstr("2_Dense/config.json: in_features: 2; allowed: 3"));
  EXPECT_THAT(refused(normalize + dense("2_Dense")), HasSubstr("after Normalize"));
  for (const char* path : {"", "/etc", "../2_Dense"}) {
    EXPECT_THAT(refused(dense(path)), HasSubstr("allowed: a folder of the model")) << path;
  }
  EXPECT_THAT(refused(dense("4_Dense")), HasSubstr("4_Dense/config.json"));
  write(folder, "2_Dense", config(2, 3, false, "torch.nn.ReLU"), {1, 2, 3, 4, 5, 6}, 2, {});
  EXPECT_THAT(refused(dense("2_Dense")), HasSubstr("activation_function: \"torch.nn.ReLU\""));
  write(folder, "2_Dense", config(2, 4, false, identity), {1, 2, 3, 4, 5, 6}, 2, {});
  EXPECT_THAT(refused(dense("2_Dense")), HasSubstr("linear.weight"));
}

TEST(EmbeddingConfig, PoolingTypeOfGguf) {
  const auto load = [](const test::GgufBuilder& file) {
    const test::TempDir folder;
    return load_embedding_config(folder.write("model.gguf", file.file()));
  };
  test::GgufBuilder file = test::tiny_gguf("qwen3");
  EXPECT_EQ(load(file)->pooling, Pooling::kLast) << "no type";
  const std::pair<uint32_t, Pooling> types[] = {{0, Pooling::kLast},
                                                {1, Pooling::kMean},
                                                {2, Pooling::kFirst},
                                                {3, Pooling::kLast},
                                                {4, Pooling::kLast}};
  for (const auto& [type, pooling] : types) {
    file.set("qwen3.pooling_type", type);
    const auto loaded = load(file);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->pooling, pooling) << type;
    EXPECT_TRUE(loaded->normalize);
  }
  const absl::Status unknown = load(file.set("qwen3.pooling_type", 5u)).status();
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("pooling_type: 5; allowed: integers from 0 to 4"));
}

TEST(EmbeddingConfig, DenseModulesOfGguf) {
  const test::TempDir folder;
  const test::GgufBuilder file = test::tiny_gguf("gemma-embedding");
  const std::string path = folder.write("model.gguf", file.file());
  const auto loaded = load_embedding_config(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->pooling, Pooling::kMean);
  EXPECT_TRUE(loaded->normalize);
  ASSERT_EQ(loaded->dense.size(), 2U);
  EXPECT_EQ(loaded->dense[0].out, 6);
  EXPECT_EQ(loaded->width(4), 4);

  test::GgufBuilder bad = test::tiny_gguf("gemma-embedding");
  bad.tensors.pop_back();
  bad.tensor("dense_3.weight", {4, 5});
  EXPECT_THAT(
      std::string(load_embedding_config(folder.write("bad.gguf", bad.file())).status().message()),
      HasSubstr("bad.gguf: dense_3.weight: inputs: 5; allowed: 6"));
}

TEST(EmbeddingConfig, PromptsOfGguf) {
  const test::TempDir folder;
  test::GgufBuilder qwen = test::tiny_gguf("qwen3");
  EXPECT_TRUE(load_embedding_config(folder.write("chat.gguf", qwen.file()))->prompts.empty());
  const std::string path = folder.write("m.gguf", qwen.set("qwen3.pooling_type", 3u).file());
  const auto known = load_embedding_config(path)->prompts;
  EXPECT_THAT(known,
              testing::UnorderedElementsAre(
                  Pair("document", ""),
                  Pair("query", HasSubstr("relevant passages that answer the query\nQuery:"))));
  const std::string gemma = folder.write("gemma.gguf", test::tiny_gguf("gemma-embedding").file());
  EXPECT_THAT(load_embedding_config(gemma)->prompts,
              testing::Contains(Pair("query", "task: search result | query: ")));
  // Files beside it take precedence.
  folder.write("config_sentence_transformers.json", R"({"prompts": {"query": "Find: "}})");
  for (const std::string& file : {path, gemma}) {
    EXPECT_THAT(load_embedding_config(file)->prompts, ElementsAre(Pair("query", "Find: ")));
  }
  folder.write("config_sentence_transformers.json", "[]");
  EXPECT_FALSE(load_embedding_config(path).ok());
}

TEST(EmbeddingConfig, ModulesBesideGguf) {
  const test::TempDir folder;
  folder.write("modules.json", module_list(""));
  const std::string path = folder.write("m.gguf", test::tiny_gguf("qwen3").file());
  EXPECT_FALSE(load_embedding_config(path)->normalize) << "no such module";
  folder.write("modules.json",
               module_list(R"(,{"type": "sentence_transformers.models.Normalize"})"));
  EXPECT_TRUE(load_embedding_config(path)->normalize);
  folder.write("modules.json", module_list(R"(,{"type": "a.models.LSTM"})"));
  EXPECT_FALSE(load_embedding_config(path).ok());
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
  EXPECT_THAT(error("modules.json", module_list(R"(,{"type": "a.models.LSTM"})")),
              HasSubstr("a.models.LSTM"));
  EXPECT_THAT(error("modules.json", "3"), HasSubstr("a list of modules"));
  EXPECT_THAT(error("modules.json", "[]}"), HasSubstr("modules.json"));
  EXPECT_THAT(error("config_sentence_transformers.json", R"({"prompts": {"a": 1}})"),
              HasSubstr("prompts"));
  EXPECT_THAT(error("config_sentence_transformers.json", R"({"default_prompt_name": "x"})"),
              HasSubstr("default_prompt_name"));
}

}  // namespace
}  // namespace tandem
