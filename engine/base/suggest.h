// The name that was probably meant, for an error that a name is unknown.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// Letters added, left out, changed or swapped with their neighbour, to make one of the other
// (optimal string alignment).
int edit_distance(absl::string_view a, absl::string_view b);

// Of `names` the nearest to `word`: one in three letters may be wrong, and an end may be missing
// where only one name goes on so. Empty: none is near.
std::string nearest(absl::string_view word, const std::vector<std::string>& names);

}  // namespace tandem
