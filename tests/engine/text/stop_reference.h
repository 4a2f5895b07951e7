// Reference of StopMatcher: a plain search.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace tandem::test {

struct StopResult {
  std::string text;  // that may be shown
  std::optional<size_t> stop;
  bool operator==(const StopResult&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const StopResult& result) {
  return out << "'" << result.text << "' stop "
             << (result.stop.has_value() ? static_cast<int>(*result.stop) : -1);
}

// The first end, then the longest, then the first in the list.
inline StopResult find_stop(const std::vector<std::string>& stops, bool include,
                            const std::string& text) {
  for (size_t end = 0; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool here = !stops[i].empty() && stops[i].size() <= end &&
                        text.compare(end - stops[i].size(), stops[i].size(), stops[i]) == 0;
      if (here && (!best.has_value() || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best.has_value()) return {text.substr(0, include ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

}  // namespace tandem::test
