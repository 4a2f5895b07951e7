// Gathering of keys and values on the emulated device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels/gather.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

struct GatherShape {
  int all_heads = 5;
  int first_head = 2;
  int heads = 2;
  int page_rows = 4;
  int words = 3;
};

// `rows` rows of the second of two sequences, in shuffled pages. Every word is numbered.
template <class Word>
std::string check_gather(const GatherShape& s, int rows, uint64_t seed) {
  constexpr int kOther = 2;  // pages of the first sequence
  const int count = (rows + s.page_rows - 1) / s.page_rows;
  std::vector<int32_t> order;
  for (int i = 0; i < kOther + count; ++i) order.push_back(i);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  const int64_t size = int64_t{kOther + count} * s.all_heads * s.page_rows * s.words;
  const auto word = [&](int kind, int64_t at) {
    Word w{};
    const auto id = static_cast<int32_t>(kind * size + at);
    std::memcpy(&w, &id, sizeof(id));
    return w;
  };
  const auto filled = [&](std::string name, int kind) {
    DeviceArray<Word> all(std::move(name), size);
    for (int64_t i = 0; i < size; ++i) all.set(i, word(kind, i));
    return all;
  };
  const DeviceArray<Word> keys = filled("keys", 0);
  const DeviceArray<Word> values = filled("values", 1);
  const int64_t part = int64_t{s.heads} * rows * s.words;
  DeviceArray<Word> to("to", 2 * part);
  const DeviceArray<int32_t> table("table", std::vector<int32_t>{kOther});
  const DeviceArray<int32_t> pages("pages", order);

  GatheredRows<Word> g;
  g.keys = keys;
  g.values = values;
  g.to = to;
  g.table = table;
  g.pages = pages;
  g.page_rows = s.page_rows;
  g.all_heads = s.all_heads;
  g.first_head = s.first_head;
  g.heads = s.heads;
  g.rows = rows;
  g.words = s.words;
  gather_rows<Word>({}, g);
  for (int kind = 0; kind < 2; ++kind) {
    for (int64_t i = 0; i < part; ++i) {
      const int64_t row = i / s.words % rows;
      const int64_t head = s.first_head + i / s.words / rows;
      const int64_t page = order[static_cast<size_t>(kOther + row / s.page_rows)];
      const Word want =
          word(kind, ((page * s.all_heads + head) * s.page_rows + row % s.page_rows) * s.words +
                         i % s.words);
      const Word got = to[kind * part + i];
      if (std::memcmp(&got, &want, sizeof(Word)) != 0) {
        return absl::StrCat(kind == 0 ? "key" : "value", ", word ", i, " is not the same");
      }
    }
  }
  return "";
}

}  // namespace tandem::cuda
