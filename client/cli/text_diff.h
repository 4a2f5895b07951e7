// Where two texts differ, token by token.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// A stretch of tokens. `text` stands in the second text, unless it is `missing` there.
struct DiffPiece {
  enum class Kind { kSame, kAdded, kMissing };
  Kind kind = Kind::kSame;
  std::string text;
  friend bool operator==(const DiffPiece&, const DiffPiece&) = default;
};

// By a longest common subsequence. Texts of more than some thousand tokens between their common
// beginning and end differ there as a whole.
std::vector<DiffPiece> diff(const std::vector<std::string>& first,
                            const std::vector<std::string>& second);

// With escape sequences where `colours`: added green, missing red and struck through; else {+...+}
// and [-...-], as in `git diff --word-diff`.
std::string show(const std::vector<DiffPiece>& pieces, bool colours);

}  // namespace tandem::cli
