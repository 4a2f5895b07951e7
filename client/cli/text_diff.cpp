#include "client/cli/text_diff.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

using Kind = DiffPiece::Kind;

constexpr size_t kCells = 16 << 20;  // of the table: 4096 by 4096 tokens

void add(std::vector<DiffPiece>* pieces, Kind kind, const std::string& text) {
  if (pieces->empty() || pieces->back().kind != kind) pieces->push_back({kind, ""});
  pieces->back().text += text;
}

// The parts between the common beginning and end.
struct Middle {
  const std::vector<std::string>& first;
  const std::vector<std::string>& second;
  size_t begin, first_end, second_end;

  size_t height() const { return first_end - begin; }
  size_t width() const { return second_end - begin; }

  void put(std::vector<DiffPiece>* out) const {
    size_t i = 0, j = 0;
    if (height() * width() <= kCells) {
      const size_t row = width() + 1;
      std::vector<int> common((height() + 1) *
                              row);  // [i, j]: length of the common subsequence from here on
      for (size_t a = height(); a-- > 0;) {
        for (size_t b = width(); b-- > 0;) {
          common[a * row + b] = first[begin + a] == second[begin + b]
                                    ? common[(a + 1) * row + b + 1] + 1
                                    : std::max(common[(a + 1) * row + b], common[a * row + b + 1]);
        }
      }
      while (i < height() && j < width()) {
        if (first[begin + i] == second[begin + j]) {
          add(out, Kind::kSame, second[begin + j]);
          ++i, ++j;
        } else if (common[(i + 1) * row + j] >= common[i * row + j + 1]) {
          add(out, Kind::kMissing, first[begin + i++]);
        } else {
          add(out, Kind::kAdded, second[begin + j++]);
        }
      }
    }
    while (i < height()) add(out, Kind::kMissing, first[begin + i++]);
    while (j < width()) add(out, Kind::kAdded, second[begin + j++]);
  }
};

}  // namespace

std::vector<DiffPiece> diff(const std::vector<std::string>& first,
                            const std::vector<std::string>& second) {
  const size_t shorter = std::min(first.size(), second.size());
  size_t begin = 0, end = 0;
  while (begin < shorter && first[begin] == second[begin]) ++begin;
  while (end < shorter - begin && first[first.size() - 1 - end] == second[second.size() - 1 - end])
    ++end;
  std::vector<DiffPiece> out;
  for (size_t i = 0; i < begin; ++i) add(&out, Kind::kSame, second[i]);
  Middle{first, second, begin, first.size() - end, second.size() - end}.put(&out);
  for (size_t i = second.size() - end; i < second.size(); ++i) add(&out, Kind::kSame, second[i]);
  return out;
}

std::string show(const std::vector<DiffPiece>& pieces, bool colours) {
  std::string out;
  for (const DiffPiece& piece : pieces) {
    switch (piece.kind) {
      case Kind::kSame:
        out += piece.text;
        break;
      case Kind::kAdded:
        absl::StrAppend(&out, colours ? "\x1b[32m" : "{+", piece.text, colours ? "\x1b[0m" : "+}");
        break;
      case Kind::kMissing:
        absl::StrAppend(&out, colours ? "\x1b[31;9m" : "[-", piece.text,
                        colours ? "\x1b[0m" : "-]");
        break;
    }
  }
  return out;
}

}  // namespace tandem::cli
