// Moves between pages on the emulated device, against a sequential reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/torch/cuda/kernels/moves.h"
#include "tests/engine/backend/torch/cuda/kernels/emulator.h"

namespace tandem::cuda {

struct MoveShape {
  int layers = 3;  // of the source; the target has less_layers fewer
  int less_layers = 0;
  int heads = 2;
  int words = 5;
  int page_rows = 8;
  bool within = false;  // source and target are the same pool
};

// Keys and values; rows overlap, and moves read what earlier ones wrote.
template <class Word>
std::string check_moves(const MoveShape& s, int n, uint64_t seed) {
  constexpr int64_t kFromPages = 3;
  const int64_t to_pages = s.within ? kFromPages : 4;
  const int to_layers = s.within ? s.layers : s.layers - s.less_layers;
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  std::vector<RowMove> moves;
  for (int i = 0; i < n; ++i) {
    RowMove m{};
    m.rows = static_cast<int32_t>(1 + draw(s.page_rows));
    m.from_page = draw(s.within ? 2 : kFromPages);
    m.to_page = draw(s.within ? 2 : to_pages);
    m.from_slot = static_cast<int32_t>(draw(s.page_rows - m.rows + 1));
    m.to_slot = static_cast<int32_t>(draw(s.page_rows - m.rows + 1));
    m.layers = static_cast<int32_t>(1 + draw(to_layers));
    moves.push_back(m);
  }

  // Elements of a pool [kind][layer][page][head][row], numbered.
  const auto count = [&](int64_t layers, int64_t pages) {
    return layers * pages * s.heads * s.page_rows * s.words;
  };
  const auto filled = [&](std::string name, int64_t size, uint32_t first) {
    DeviceArray<Word> all(std::move(name), size);
    for (int64_t i = 0; i < size; ++i) {
      Word w{};
      const auto id = static_cast<uint32_t>(first + i);
      std::memcpy(&w, &id, std::min(sizeof(Word), sizeof(id)));
      all.set(i, w);
    }
    return all;
  };
  const int64_t from_size = count(s.layers, kFromPages);
  const int64_t to_size = count(to_layers, to_pages);
  std::vector<DeviceArray<Word>> from, to;
  for (uint32_t kind = 0; kind < 2; ++kind) {
    from.push_back(filled("from", from_size, kind * 20000));
    if (!s.within) to.push_back(filled("to", to_size, kind * 20000 + 10000));
  }
  std::vector<DeviceArray<Word>>& target = s.within ? from : to;

  const auto place = [&](int64_t layer, int64_t pages, int64_t page, int64_t head, int64_t row) {
    return (((layer * pages + page) * s.heads + head) * s.page_rows + row) * s.words;
  };
  std::vector<std::vector<Word>> want(2), source(2);
  for (size_t kind = 0; kind < 2; ++kind) {
    for (int64_t i = 0; i < to_size; ++i) want[kind].push_back(target[kind][i]);
    for (int64_t i = 0; i < from_size; ++i) source[kind].push_back(from[kind][i]);
    for (const RowMove& m : moves) {
      const std::vector<Word> before = s.within ? want[kind] : source[kind];
      for (int64_t l = 0; l < m.layers; ++l) {
        for (int64_t h = 0; h < s.heads; ++h) {
          for (int64_t r = 0; r < m.rows; ++r) {
            std::copy_n(before.begin() + place(l, kFromPages, m.from_page, h, m.from_slot + r),
                        s.words,
                        want[kind].begin() + place(l, to_pages, m.to_page, h, m.to_slot + r));
          }
        }
      }
    }
  }

  MovedRows<Word> rows;
  rows.kinds = 2;
  rows.from_pages = kFromPages;
  rows.to_pages = to_pages;
  rows.from_page_rows = rows.to_page_rows = s.page_rows;
  rows.layers = to_layers;
  rows.heads = s.heads;
  rows.words = s.words;
  for (size_t kind = 0; kind < 2; ++kind) {
    rows.from[kind] = from[kind];
    rows.to[kind] = target[kind];
  }
  const DeviceArray<RowMove> list("moves", moves);
  move_words<Word>({}, rows, list, n);
  for (size_t kind = 0; kind < 2; ++kind) {
    for (int64_t i = 0; i < to_size; ++i) {
      const Word got = target[kind][i];
      if (std::memcmp(&got, &want[kind][static_cast<size_t>(i)], sizeof(Word)) != 0) {
        return absl::StrCat("kind ", kind, ", word ", i, " is not the same");
      }
    }
  }
  return "";
}

}  // namespace tandem::cuda
