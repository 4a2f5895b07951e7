// Access to tests/engine/text/data, which make_goldens.py writes, and temporary model directories.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tests/sanitized.h"
#include "tests/temp_dir.h"

namespace tandem::test {

inline constexpr size_t kGoldenStep = kSanitized ? 4 : 1;  // between golden texts that are tested

inline std::string data_path(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/tests/engine/text/data/" + name;
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

inline const std::vector<std::string>& tokenizer_names() {
  static const auto* const kNames =
      new std::vector<std::string>{"gpt2", "gpt2_prefix", "llama3", "llama2", "bert", "t5"};
  return *kNames;
}

// A tokenizer of data/tokenizers, loaded once.
inline std::shared_ptr<const Tokenizer> golden_tokenizer(const std::string& name) {
  static auto* const loaded = new std::map<std::string, std::shared_ptr<const Tokenizer>>();
  auto& entry = (*loaded)[name];
  if (entry == nullptr) {
    auto tokenizer = Tokenizer::load(data_path("tokenizers/" + name));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    entry = *tokenizer;
  }
  return entry;
}

// A temporary model directory, removed with the object.
class TemporaryModel {
 public:
  TemporaryModel& write(const std::string& name, std::string_view text) {
    folder_.write(name, text);
    return *this;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  const TempDir folder_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace tandem::test
