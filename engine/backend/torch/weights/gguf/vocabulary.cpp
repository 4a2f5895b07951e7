#include "engine/backend/torch/weights/gguf/vocabulary.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"

namespace tandem {
namespace {

using nlohmann::json;

bool is_byte(std::string_view t) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return t.size() == 6 && t.substr(0, 3) == "<0x" && hex(t[3]) && hex(t[4]) && t[5] == '>';
}

}  // namespace

std::string gguf_token_key(const char* key, size_t i) {
  return absl::StrCat(kGgufTokens, key, "[", i, "]");
}

GgufVocabulary GgufVocabulary::read(GgufFields& fields, bool byte_tokens) {
  GgufVocabulary v;
  const std::vector<std::string_view> tokens = fields.texts("tokenizer.ggml.tokens");
  if (tokens.empty()) fields.refuse("tokenizer.ggml.tokens", "missing", "a list of tokens");
  v.tokens.assign(tokens.begin(), tokens.end());
  v.types = fields.integers("tokenizer.ggml.token_type");
  if (v.types.empty()) v.types.assign(tokens.size(), kNormal);
  if (v.types.size() != tokens.size()) {
    fields.refuse("number of tokenizer.ggml.token_type", absl::StrCat(v.types.size()),
                  absl::StrCat(tokens.size(), ", the number of tokens"));
    return v;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t type = v.types[i];
    if (type < kNormal || type > kByte) {
      fields.refuse(gguf_token_key("token_type", i), absl::StrCat(type), "1 to 6");
    }
    if (type == kByte && (!byte_tokens || !is_byte(tokens[i]))) {
      fields.refuse(gguf_token_key("tokens", i), quote_value(v.tokens[i]),
                    byte_tokens ? "<0x00> to <0xFF> for a token of type 6"
                                : "no tokens of type 6 in a byte-level vocabulary");
    }
  }
  return v;
}

void GgufVocabulary::index(GgufFields& fields) {
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!used(i)) continue;
    const auto [it, fresh] = ids.emplace(tokens[i], static_cast<uint32_t>(i));
    if (fresh) continue;
    return fields.refuse(gguf_token_key("tokens", i), quote_value(tokens[i]),
                         absl::StrCat("a text other than that of token ", it->second));
  }
}

std::optional<size_t> GgufVocabulary::id_of(GgufFields& fields, const char* key) const {
  const std::string name = absl::StrCat(kGgufTokens, key);
  if (!fields.present(name)) return std::nullopt;
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  return static_cast<size_t>(fields.integer(name, std::nullopt, 0, last));
}

std::vector<float> GgufVocabulary::scores(GgufFields& fields) const {
  std::vector<float> all = fields.numbers("tokenizer.ggml.scores");
  if (all.size() != tokens.size()) {
    fields.refuse("number of tokenizer.ggml.scores", absl::StrCat(all.size()),
                  absl::StrCat(tokens.size(), ", the number of tokens"));
  }
  return all;
}

json GgufVocabulary::added_tokens() const {
  json all = json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = types[id];
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    if (tokens[id].empty()) continue;
    all.push_back({{"id", id},
                   {"content", tokens[id]},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", false},
                   {"normalized", false},
                   {"special", type != kUserDefined}});
  }
  return all;
}

json GgufVocabulary::post_processor(GgufFields& fields, bool add_bos, bool add_eos) const {
  json single = json::array(), special = json::object();
  const auto add = [&](const char* flag, bool fallback, const char* key) {
    if (!fields.boolean(absl::StrCat(kGgufTokens, flag), fallback)) return;
    const std::optional<size_t> id = id_of(fields, key);
    if (!id) return fields.refuse(absl::StrCat(kGgufTokens, key), "missing", "a token to add");
    if (!fields.status().ok()) return;
    const std::string& text = tokens[*id];
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    special[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
  };
  add("add_bos_token", add_bos, "bos_token_id");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add("add_eos_token", add_eos, "eos_token_id");
  if (special.empty()) return nullptr;
  json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

void append_json_string(std::string* out, std::string_view text) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      constexpr const char* kHex = "0123456789abcdef";
      absl::StrAppend(out, "\\u00", c < 16 ? "0" : "1");
      out->push_back(kHex[c & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

std::string tokenizer_json_of(json parts, const std::string& model) {
  parts["version"] = "1.0";
  std::string out = parts.dump();
  out.back() = ',';
  return absl::StrCat(out, "\"model\":", model, "}");
}

}  // namespace tandem
