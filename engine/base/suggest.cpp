#include "engine/base/suggest.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace tandem {

int edit_distance(absl::string_view a, absl::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int> at((a.size() + 1) *
                      width);  // [i, j]: distance of the first i and first j letters
  for (size_t i = 0; i <= a.size(); ++i) at[i * width] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) at[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      int best = std::min({at[(i - 1) * width + j] + 1, at[i * width + j - 1] + 1,
                           at[(i - 1) * width + j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, at[(i - 2) * width + j - 2] + 1);
      }
      at[i * width + j] = best;
    }
  }
  return at.back();
}

std::string nearest(absl::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64;  // longer words are not looked up
  if (word.size() > kLongest) return "";
  std::string meant(word);
  std::replace(meant.begin(), meant.end(), '_', '-');
  std::vector<std::string> go_on;
  for (const std::string& name : names) {
    if (meant.size() >= 3 && absl::StartsWith(name, meant)) go_on.push_back(name);
  }
  if (go_on.size() == 1) return go_on.front();
  int best = static_cast<int>(meant.size()) / 3 + 1;
  std::string found;
  for (const std::string& name : names) {
    const int distance = edit_distance(meant, name);
    if (distance < best) {
      best = distance;
      found = name;
    }
  }
  return found;
}

}  // namespace tandem
