// Golden models with what an engine needs: a tokenizer, and masks for BiTA.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/hf/config.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/engine/backend/torch/golden.h"
#include "tests/engine/host/kit.h"
#include "tests/temp_dir.h"

namespace tandem::testing {

// A golden model with a tokenizer of words "w0", "w1", ... : as many as it has rows.
class Served {
 public:
  explicit Served(const std::string& name)
      : Served(name, load_hf_config(Golden(name).directory())->vocab_size) {}
  // Or with another tokenizer.json.
  Served(const std::string& name, int vocab, const std::string& tokenizer = "") : golden(name) {
    for (const auto& file : std::filesystem::directory_iterator(golden.directory())) {
      std::filesystem::copy(file.path(), folder_.path());
    }
    if (!tokenizer.empty()) {
      folder_.write("tokenizer.json", tokenizer);
      return;
    }
    std::string words;
    for (int id = 0; id < vocab; ++id) {
      absl::StrAppend(&words, id > 0 ? "," : "", "\"w", id, "\":", id);
    }
    folder_.write(
        "tokenizer.json",
        absl::StrCat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],)",
                     R"("normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},)",
                     R"("post_processor":null,"decoder":null,)",
                     R"("model":{"type":"WordLevel","vocab":{)", words, R"(},"unk_token":"w2"}})"));
  }

  std::string path() const { return folder_.path(); }
  GenerateRequest request(int prompt, const std::string& model) const {
    GenerateRequest r = request_for(golden.prompt(prompt), 40);
    r.model = model;
    r.method = kAutoregressive;
    r.sampling.temperature = 0;
    return r;
  }

  const Golden golden;

 private:
  test::TempDir folder_;
};

// Untrained masks and prompts.
inline ExtraConfig write_masks(const test::AdapterFolders& folders) {
  const DecoderConfig& base = folders.base;
  const auto drawn = [](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    test::Matrix m{name, std::move(shape), std::vector<float>(static_cast<size_t>(n))};
    for (int64_t i = 0; i < n; ++i) {
      m.values[static_cast<size_t>(i)] = static_cast<float>((i * 37 + n) % 101 - 50) / 50;
    }
    return m;
  };
  const std::vector<int64_t> cached{base.layers, 5, base.kv_heads, base.head_dim};
  return folders.write("masks", {{"kind", "masks"}},
                       {drawn("masks", {3, base.hidden_size}), drawn("prompt.keys", cached),
                        drawn("prompt.values", cached)});
}

}  // namespace tandem::testing
