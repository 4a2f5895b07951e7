// Token-by-token differences of two texts.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// A run of tokens. `text` is part of the second text, unless the kind is kMissing.
struct DiffPiece {
  enum class Kind { kSame, kAdded, kMissing };
  Kind kind = Kind::kSame;
  std::string text;
  friend bool operator==(const DiffPiece&, const DiffPiece&) = default;
};

// Uses a longest common subsequence. If more than a few thousand tokens lie between the common
// beginning and end, that part is reported as different as a whole.
std::vector<DiffPiece> diff(const std::vector<std::string>& first,
                            const std::vector<std::string>& second);

// With `colours`: added text is green, missing text red and struck through. Else {+...+} and
// [-...-], as in `git diff --word-diff`.
std::string show(const std::vector<DiffPiece>& pieces, bool colours);

}  // namespace tandem::cli
