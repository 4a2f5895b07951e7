#include "engine/text/merge_order.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {
namespace {

bool begins_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }

auto characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), begins_character);
}

}  // namespace

bool merges_in_order(const Tokenizer& tokenizer) {
  constexpr int kSampled = 1000;
  constexpr double kLeastShare = 0.95;
  const int size = tokenizer.vocab_size();
  int sampled = 0, merged = 0;
  const int step = std::max(1, size / kSampled);
  for (Token t = 0; t < size; t += step) {
    const std::string text = tokenizer.token_text(t);
    // Single characters may have any id.
    const auto earlier = [&](std::string_view part) {
      if (characters(part) == 1) return true;
      const std::optional<Token> id = tokenizer.token_id(part);
      return id && *id < t;
    };
    if (tokenizer.is_special(t) || characters(text) < 2) continue;
    ++sampled;
    for (size_t i = 1; i < text.size(); ++i) {
      if (!begins_character(text[i])) continue;
      const std::string_view all = text;
      if (!earlier(all.substr(0, i)) || !earlier(all.substr(i))) continue;
      ++merged;
      break;
    }
  }
  return sampled > 0 && merged >= kLeastShare * sampled;
}

}  // namespace tandem
