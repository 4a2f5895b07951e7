// The model files of scripts/models, if present: every value of every tensor equals gguf-py's, bit
// for bit. Only the smallest file, which takes a second or two, unless TANDEM_ALL_MODELS is set.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/backend/torch/weights/gguf/blocks.h"
#include "engine/backend/torch/weights/gguf/file.h"

namespace tandem {
namespace {

constexpr uintmax_t kSmall = 100'000'000;  // bytes

std::filesystem::path models_folder() {
  if (const char* home = std::getenv("TANDEM_HOME")) {
    return std::filesystem::path(home) / "models";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home ? home : "/") / ".cache/tandem/models";
}

// As in make_hashes.py.
uint64_t hash_of(const GgufTensor& tensor) {
  const auto values = static_cast<size_t>(tensor.format->values);
  const auto bytes = static_cast<size_t>(tensor.format->bytes);
  std::vector<float> out(values);
  uint64_t sum = 0, index = 0;
  for (size_t at = 0; at < tensor.data.size(); at += bytes) {
    tensor.format->decode(tensor.data.data() + at, out.data());
    for (const float value : out) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      uint64_t x = bits + ++index * 0x9E3779B97F4A7C15U;
      x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
      sum += x ^ (x >> 32);
    }
  }
  return sum;
}

TEST(GgufReal, EveryTensorMatchesTheReference) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/tests/data/gguf/real_models.json");
  const auto expected = nlohmann::json::parse(file);
  int compared = 0;
  for (const auto& [name, types] : expected.items()) {
    const std::filesystem::path path = models_folder() / name;
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error || (size > kSmall && !std::getenv("TANDEM_ALL_MODELS"))) continue;
    ++compared;
    const auto gguf = GgufFile::open(path.string());
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    std::map<std::string, uint64_t> totals;
    for (const auto& [tensor_name, tensor] : gguf->content.tensors) {
      uint64_t& total = totals[std::string(tensor.format->name)];
      total = 31 * total + hash_of(tensor);
    }
    EXPECT_EQ(totals.size(), types.size()) << name;
    for (const auto& [type, total] : totals) {
      EXPECT_EQ(absl::StrFormat("%016x", total), types.value(type, "none")) << name << ", " << type;
    }
  }
  if (compared == 0) GTEST_SKIP() << "none is here: scripts/models fetch smollm2-135m";
}

}  // namespace
}  // namespace tandem
