#include "engine/backend/torch/weights/gguf/unigram.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

using nlohmann::json;

// {"type":"Unigram", ...}. Unused tokens keep their ids under a name that contains a space, which
// normalized text never has.
std::string model_json(const GgufVocabulary& v, const std::vector<float>& scores,
                       std::optional<size_t> unknown) {
  const bool bytes = std::ranges::find(v.types, GgufVocabulary::kByte) != v.types.end();
  json settings = {{"type", "Unigram"}, {"byte_fallback", bytes}};
  settings["unk_id"] = unknown ? json(*unknown) : json(nullptr);
  std::string out = settings.dump();
  out.back() = ',';  // replaces the closing brace
  out += "\"vocab\":[";
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    out += id == 0 ? "[" : ",[";
    append_json_string(&out, absl::StrCat(v.used(id) ? "" : " ", v.tokens[id]));
    absl::StrAppend(&out, ",", json(scores[id]).dump(), "]");
  }
  return out + "]}";
}

}  // namespace

std::string gguf_unigram(GgufFields& fields, const GgufVocabulary& vocabulary) {
  const std::vector<float> scores = vocabulary.scores(fields);
  const bool prefix = fields.boolean("tokenizer.ggml.add_space_prefix", true);
  const bool strips = fields.boolean("tokenizer.ggml.remove_extra_whitespaces", true);
  const std::optional<size_t> unknown = vocabulary.id_of(fields, "unknown_token_id");
  std::string map;
  for (const int64_t byte : fields.integers("tokenizer.ggml.precompiled_charsmap")) {
    map.push_back(static_cast<char>(byte));
  }
  const json post_processor =
      vocabulary.post_processor(fields, /*add_bos=*/false, /*add_eos=*/true);
  if (!fields.status().ok()) return "";
  json normalizers = json::array();
  if (!map.empty()) {
    normalizers.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", absl::Base64Escape(map)}});
  }
  if (strips) {
    normalizers.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    normalizers.push_back(
        {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  }
  const json spaces = {{"type", "Metaspace"},
                       {"replacement", kGgufSpace},
                       {"prepend_scheme", prefix ? "always" : "never"},
                       {"split", true}};
  json parts = {{"added_tokens", vocabulary.added_tokens()},
                {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                {"pre_tokenizer", spaces},
                {"decoder", spaces},
                {"post_processor", post_processor}};
  return tokenizer_json_of(std::move(parts), model_json(vocabulary, scores, unknown));
}

}  // namespace tandem
