// Small byte-level BPE tokenizers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::testing {

// tokenizer.json of a byte-level BPE: printable ASCII and line ends, and what `merges` make of
// them; then "<s>", a special token.
inline std::string byte_level_tokenizer(
    const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> vocab;
  for (int c = 33; c < 127; ++c) vocab.emplace_back(1, static_cast<char>(c));
  vocab.emplace_back("\u0120");
  vocab.emplace_back("\u010a");
  std::string entries, rules;
  for (const auto& [a, b] : merges) {
    vocab.push_back(a + b);
    absl::StrAppend(&rules, rules.empty() ? "" : ",", "[\"", a, "\",\"", b, "\"]");
  }
  for (size_t i = 0; i < vocab.size(); ++i) {
    const bool escaped = vocab[i] == "\"" || vocab[i] == "\\";
    absl::StrAppend(&entries, i > 0 ? "," : "", "\"", escaped ? "\\" : "", vocab[i], "\":", i);
  }
  return absl::StrCat(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":)", vocab.size(),
      R"(,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,)",
      R"("normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":)",
      R"("ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false},)",
      R"("post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,)",
      R"("trim_offsets":true,"use_regex":false},"model":{"type":"BPE","vocab":{)", entries,
      R"(},"merges":[)", rules, "]}}");
}

}  // namespace tandem::testing
