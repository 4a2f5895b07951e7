// Tokenizers of GGUF files against Transformers on 500 hostile strings: files made from golden
// tokenizers, and real models if scripts/models has fetched them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/tokenizer.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/backend/torch/weights/gguf/builder.h"
#include "tests/engine/text/test_data.h"

namespace tandem {
namespace {

using nlohmann::json;
using Ids = std::vector<Token>;

const std::vector<std::string>& texts() {
  static const auto* const kTexts = new std::vector<std::string>(
      test::read_json(test::data_path("tokenizers/texts.json")).get<std::vector<std::string>>());
  return *kTexts;
}

std::shared_ptr<const Tokenizer> tokenizer_of(const Gguf& gguf) {
  const absl::StatusOr<GgufTokenizer> made = gguf_tokenizer(gguf, "f");
  EXPECT_TRUE(made.ok()) << made.status();
  if (!made.ok()) return nullptr;
  auto tokenizer = Tokenizer::parse("f", made->tokenizer_json, made->tokenizer_config_json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

// The GGUF metadata that a converter writes for the golden tokenizer `name`.
test::GgufBuilder converted(const std::string& name) {
  const json file = test::read_json(test::data_path("tokenizers/" + name + "/tokenizer.json"));
  const json& vocab = file["model"]["vocab"];
  constexpr int32_t kNormal = 1, kControl = 3;
  std::vector<std::string> tokens(vocab.size());
  std::vector<int32_t> types;
  for (const json& added : file["added_tokens"]) {
    if (added["id"] >= tokens.size()) tokens.resize(added["id"].get<size_t>() + 1);
  }
  types.assign(tokens.size(), kNormal);
  for (const auto& [text, id] : vocab.items()) tokens[id.get<size_t>()] = text;
  for (const json& added : file["added_tokens"]) {
    tokens[added["id"].get<size_t>()] = added["content"];
    types[added["id"].get<size_t>()] = kControl;
  }
  std::vector<std::string> merges;
  for (const json& merge : file["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  test::GgufBuilder b;
  b.set("general.architecture", "llama").set("tokenizer.ggml.tokens", tokens);
  b.set("tokenizer.ggml.token_type", types).set("tokenizer.ggml.merges", merges);
  if (name == "llama2") {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].size() == 6 && tokens[i].substr(0, 3) == "<0x") types[i] = 6;
    }
    b.set("tokenizer.ggml.token_type", types).set("tokenizer.ggml.model", "llama");
    b.set("tokenizer.ggml.scores", std::vector<float>(tokens.size()));
    b.set("tokenizer.ggml.unknown_token_id", 0u).set("tokenizer.ggml.bos_token_id", 1u);
  } else {
    b.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "llama-bpe");
    b.set("tokenizer.ggml.bos_token_id", 1200u);
  }
  return b;
}

TEST(GgufText, ConvertedTokenizersCutTextAsTheOriginals) {
  for (const char* name : {"llama3", "llama2"}) {
    const std::string file = converted(name).file();
    const absl::StatusOr<Gguf> gguf = parse_gguf(std::as_bytes(std::span(file)), "f");
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    const auto tokenizer = tokenizer_of(*gguf);
    ASSERT_NE(tokenizer, nullptr);
    const auto original = test::golden_tokenizer(name);
    const auto known = static_cast<Token>(tokenizer->vocab_size());
    int compared = 0;
    for (size_t i = 0; i < texts().size(); ++i) {
      // A token that only tokenizer_config.json adds is in no GGUF file.
      const Ids all = original->encode(texts()[i], true).value();
      if (std::ranges::any_of(all, [known](Token t) { return t >= known; })) continue;
      ++compared;
      for (const bool special : {false, true}) {
        const absl::StatusOr<Ids> ids = tokenizer->encode(texts()[i], special);
        ASSERT_TRUE(ids.ok()) << ids.status();
        ASSERT_EQ(*ids, original->encode(texts()[i], special).value()) << name << ", text " << i;
        ASSERT_EQ(*tokenizer->decode(*ids, true), *original->decode(*ids, true)) << texts()[i];
      }
    }
    EXPECT_GT(compared, static_cast<int>(texts().size()) * 9 / 10) << name;
  }
}

// T5's tokens as a converter writes them: scores in fp32, then unused pieces. The map of characters
// is empty, as in files without one.
test::GgufBuilder unigram(const json& file) {
  const json& vocab = file["model"]["vocab"];
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const json& piece : vocab) {
    tokens.push_back(piece[0]);
    scores.push_back(piece[1]);
    types.push_back(1);
  }
  types[0] = types[1] = 3;
  types[2] = 2;
  tokens.emplace_back("a");  // once more, and unused
  scores.push_back(-0.1f);
  types.push_back(5);
  test::GgufBuilder b;
  b.set("general.architecture", "t5").set("tokenizer.ggml.model", "t5");
  b.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
  b.set("tokenizer.ggml.token_type", types);
  b.set("tokenizer.ggml.padding_token_id", 0u).set("tokenizer.ggml.eos_token_id", 1u);
  b.set("tokenizer.ggml.unknown_token_id", 2u);
  // A table of 256 numbers in which no byte is found, and no text.
  const std::string none = test::bytes_of(uint32_t{1024}) + std::string(1024, '\0');
  b.metadata.emplace_back("tokenizer.ggml.precompiled_charsmap",
                          test::gguf_array(GgufType::kU8, none.size(), none));
  return b;
}

TEST(GgufText, UnigramsCutTextAsTheOriginals) {
  json file = test::read_json(test::data_path("tokenizers/t5/tokenizer.json"));
  const std::string bytes = unigram(file).file();
  const absl::StatusOr<Gguf> gguf = parse_gguf(std::as_bytes(std::span(bytes)), "f");
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto tokenizer = tokenizer_of(*gguf);
  ASSERT_NE(tokenizer, nullptr);
  // The golden file's text is normalized by Unicode's rules, not by a map, and not stripped.
  for (json& piece : file["model"]["vocab"]) piece[1] = piece[1].get<float>();
  file["normalizer"]["normalizers"][0] = {
      {"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const auto original = Tokenizer::parse("g", file.dump(), "{}");
  ASSERT_TRUE(original.ok()) << original.status();
  for (const std::string& text : texts()) {
    for (const bool special : {false, true}) {
      const absl::StatusOr<Ids> ids = tokenizer->encode(text, special);
      ASSERT_TRUE(ids.ok()) << ids.status();
      ASSERT_EQ(*ids, (*original)->encode(text, special).value()) << text;
      ASSERT_EQ(*tokenizer->decode(*ids, true), *(*original)->decode(*ids, true)) << text;
    }
  }
  EXPECT_EQ(tokenizer->encode("", true).value(), Ids{1});  // the end, and nothing before
}

TEST(GgufText, ChatTemplateOfAFile) {
  const absl::StatusOr<std::shared_ptr<const ChatTemplate>> chat =
      ChatTemplate::parse("f", R"({"eos_token": "<e>", "chat_template": [{"name": "default",
               "template": "{{ messages[0].content }}{{ eos_token }}"}]})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ((*chat)->render(R"([{"role": "user", "content": "hi"}])", "", "", false).value(),
            "hi<e>");
  EXPECT_FALSE(ChatTemplate::parse("f", "{}").value()->present());
  EXPECT_EQ(ChatTemplate::parse("f", "[]").status().message(), "f: must be a JSON object");
  EXPECT_EQ(Tokenizer::parse("f", "{}", "{}").status().code(), absl::StatusCode::kInvalidArgument);
}

// FNV-1a, as make_gguf_goldens.py computes it.
std::string fnv(const Ids& ids) {
  uint64_t value = 0xcbf29ce484222325;
  for (const Token id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ (static_cast<uint32_t>(id) >> shift & 0xff)) * 0x100000001b3;
    }
  }
  std::string hex(16, '0');
  std::snprintf(hex.data(), hex.size() + 1, "%016llx", static_cast<unsigned long long>(value));
  return hex;
}

// The folder of files fetched by scripts/setup and scripts/models.
std::string cache() {
  const char* const home = std::getenv("TANDEM_HOME");
  const char* const user = std::getenv("HOME");
  return home != nullptr ? home : user != nullptr ? std::string(user) + "/.cache/tandem" : "";
}

class FetchedTokenizers : public ::testing::TestWithParam<const char*> {};

TEST_P(FetchedTokenizers, CutTextAsTransformersDoes) {
  const std::string path = cache() + "/models/" + GetParam() + ".gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there (scripts/models fetch " << GetParam() << ")";
  }
  const absl::StatusOr<GgufFile> file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = tokenizer_of(file->content);
  ASSERT_NE(tokenizer, nullptr);
  const json goldens =
      test::read_json(std::string(TANDEM_SOURCE_DIR) + "/tests/data/gguf/tokens.json")[GetParam()];
  ASSERT_EQ(goldens.size(), texts().size());
  for (size_t i = 0; i < texts().size(); ++i) {
    const absl::StatusOr<Ids> ids = tokenizer->encode(texts()[i], false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(fnv(*ids), goldens[i].get<std::string>()) << "text " << i << ": " << texts()[i];
  }
}

INSTANTIATE_TEST_SUITE_P(All, FetchedTokenizers,
                         ::testing::Values("smollm2-135m", "qwen2.5-coder-0.5b", "gemma-3-270m"));

std::string whole(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Vocabularies with texts and their tokens, from llama.cpp's own tests.
class LlamaCppVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(LlamaCppVectors, AreCutAsLlamaCppDoes) {
  const std::string path = cache() + "/vocabularies/ggml-vocab-" + GetParam() + ".gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there (scripts/setup --peers)";
  }
  const absl::StatusOr<GgufFile> file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = tokenizer_of(file->content);
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<std::string> inputs =
      absl::StrSplit(whole(path + ".inp"), "\n__ggml_vocab_test__\n");
  const std::vector<std::string> outputs = absl::StrSplit(whole(path + ".out"), '\n');
  ASSERT_GT(inputs.size(), 40U);
  ASSERT_GE(outputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Ids expected;
    for (const absl::string_view id : absl::StrSplit(outputs[i], ' ', absl::SkipEmpty())) {
      ASSERT_TRUE(absl::SimpleAtoi(id, &expected.emplace_back()));
    }
    const absl::StatusOr<Ids> ids = tokenizer->encode(inputs[i], false, SpecialText::kPlain);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected) << "text " << i << ": " << inputs[i];
  }
}

INSTANTIATE_TEST_SUITE_P(GgufText, LlamaCppVectors,
                         ::testing::Values("command-r", "falcon", "gpt-2", "llama-bpe", "llama-spm",
                                           "phi-3", "qwen2", "refact", "starcoder"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem
