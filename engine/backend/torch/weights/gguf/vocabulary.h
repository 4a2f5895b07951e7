// The tokens of a GGUF file, and the parts of tokenizer.json that do not depend on the algorithm.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/backend/torch/weights/gguf/file.h"

namespace tandem {

inline constexpr char kGgufTokens[] = "tokenizer.ggml.";  // prefix of the keys
inline constexpr char kGgufSpace[] = "\u2581";  // SentencePiece's representation of a space

struct GgufVocabulary {
  // tokenizer.ggml.token_type
  enum Type : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::unordered_map<std::string_view, uint32_t> ids;  // of all but unused tokens; set by index()

  // byte_tokens: whether byte tokens are allowed. Errors are recorded in `fields`, here and below.
  static GgufVocabulary read(GgufFields& fields, bool byte_tokens);
  void index(GgufFields& fields);

  bool used(size_t id) const { return types[id] != kUnused; }
  // The id in tokenizer.ggml.`key`, if present.
  std::optional<size_t> id_of(GgufFields& fields, const char* key) const;
  // tokenizer.ggml.scores, one per token.
  std::vector<float> scores(GgufFields& fields) const;
  // "added_tokens" of a tokenizer.json.
  nlohmann::json added_tokens() const;
  // "post_processor": tokens added around a text, unless the file specifies otherwise.
  nlohmann::json post_processor(GgufFields& fields, bool add_bos, bool add_eos) const;
};

// Key of one element: "tokenizer.ggml.KEY[3]".
std::string gguf_token_key(const char* key, size_t i);

// Appends a JSON string literal.
void append_json_string(std::string* out, std::string_view text);

// Assembles tokenizer.json from its parts and the text of "model".
std::string tokenizer_json_of(nlohmann::json parts, const std::string& model);

}  // namespace tandem
