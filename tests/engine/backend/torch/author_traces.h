// What the authors' implementations of BiLD and BiTA decided with golden models
// (tests/engine/host/make_author_traces.py).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/engine/backend/torch/adapter_folders.h"
#include "tests/source_dir.h"

namespace tandem::test {

inline nlohmann::json author_traces() {
  std::ifstream file(source_dir() + "/tests/data/author_traces.json");
  return nlohmann::json::parse(file);
}

// Their masks and prompts: [masks, hidden], then by prompt row and layer a key and a value.
inline ExtraConfig write_author_masks(const AdapterFolders& folders, const std::string& base64) {
  std::string bytes;
  absl::Base64Unescape(base64, &bytes);
  size_t next = 0;
  const auto number = [&] {
    return static_cast<float>(static_cast<signed char>(bytes[next++])) / 8;
  };
  const DecoderConfig& c = folders.base;
  const auto width = static_cast<size_t>(c.kv_heads * c.head_dim);
  const auto layers = static_cast<size_t>(c.layers);
  const auto hidden = static_cast<size_t>(c.hidden_size);
  constexpr size_t kMasks = 3, kRows = 2;
  Matrix masks{"masks", {kMasks, c.hidden_size}, {}};
  for (size_t i = 0; i < kMasks * hidden; ++i) masks.values.push_back(number());
  const std::vector<int64_t> shape{c.layers, kRows, c.kv_heads, c.head_dim};
  Matrix keys{"prompt.keys", shape, std::vector<float>(layers * kRows * width)};
  Matrix values{"prompt.values", shape, keys.values};
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t layer = 0; layer < layers; ++layer) {
      for (Matrix* m : {&keys, &values}) {
        for (size_t i = 0; i < width; ++i) m->values[(layer * kRows + row) * width + i] = number();
      }
    }
  }
  return folders.write("masks", {{"kind", "masks"}}, {masks, keys, values});
}

}  // namespace tandem::test
