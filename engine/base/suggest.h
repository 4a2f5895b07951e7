// Suggestions for unknown names in error messages.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// Edit distance with insertions, deletions, substitutions and swaps of neighbours (optimal string
// alignment).
int edit_distance(absl::string_view a, absl::string_view b);

// The most similar of `names`: at most one in three letters may be wrong, or `word` is a prefix of
// only one name. Empty: none is similar.
std::string nearest(absl::string_view word, const std::vector<std::string>& names);

}  // namespace tandem
