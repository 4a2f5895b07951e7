// Tokenizer: text to token ids and back, for one `tokenizer.json`.
//
// The `tokenizers` library does the work behind the C ABI of engine/text/rust. This class adds what
// Transformers adds to it (tokens of tokenizer_config.json, clean-up of spaces) and reports all
// errors as Status. For incremental decoding see stream_decoder.h.
//
// Threading: immutable after load(); all methods are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/text/piece_table.h"

struct TandemTokenizer;  // engine/text/rust/tandem_text.h

namespace tandem {

// Treatment of text that spells a special token, such as "</s>" typed by a user.
enum class SpecialText {
  kAsConfigured,  // by the model's `split_special_tokens`, else kParse (Transformers' default)
  kParse,         // becomes the special token
  kPlain,         // ordinary text; added tokens that are not special are still parsed
};

class Tokenizer {
 public:
  // Reads `directory`/tokenizer.json and, where they exist, tokenizer_config.json,
  // special_tokens_map.json and added_tokens.json as Transformers reads them. Truncation and
  // padding in tokenizer.json are ignored, as Transformers does by default. Errors, naming the
  // file: NOT_FOUND (no tokenizer.json), INVALID_ARGUMENT (invalid file).
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> load(const std::string& directory);

  // As load(), from the texts of tokenizer.json and tokenizer_config.json, for models without these
  // files. `name` replaces the file names in messages.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> parse(const std::string& name,
                                                                const std::string& json,
                                                                const std::string& config);

  // Bytes as tokens 0 to 255 and "<|endoftext|>" as 256, for models without files. INTERNAL: there
  // is too little memory.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> load_bytes();
  static std::shared_ptr<const Tokenizer> bytes();  // REQUIRES: enough memory

  // Ids of `text`. With `add_special_tokens`, the post-processor adds the tokens that the model
  // expects around a text (for example a begin-of-text token). Errors: INVALID_ARGUMENT with the
  // byte offset of invalid UTF-8; INTERNAL if the library fails.
  absl::StatusOr<std::vector<Token>> encode(
      std::string_view text, bool add_special_tokens,
      SpecialText special_text = SpecialText::kAsConfigured) const;

  // Text of `ids`, always valid UTF-8; ill-formed bytes become U+FFFD. Unused ids below
  // vocab_size() have no text. Errors: INVALID_ARGUMENT naming the first id outside [0,
  // vocab_size()) and that range.
  absl::StatusOr<std::string> decode(absl::Span<const Token> ids, bool skip_special_tokens) const;

  // The largest id + 1, added tokens included. encode() returns smaller ids only.
  int vocab_size() const { return vocab_size_; }

  // Bytes of the longest token's text. A text of n tokens has at most n times as many bytes, unless
  // the tokenizer drops input (runs of blanks, accents, unknown words).
  size_t longest_piece() const { return longest_piece_; }

  // The vocabulary's spelling of a token ("Ġthe", "▁the", "<0x0A>"); empty for unused ids.
  std::string token_text(Token token) const;

  // The bytes that the token adds to a text after other tokens, also for special tokens. They need
  // not be valid UTF-8: a character may span several tokens. Empty for unused ids.
  std::string token_bytes(Token token) const;
  std::optional<Token> token_id(std::string_view text) const;

  // Whether decode() omits the token when special tokens are skipped. False out of range.
  bool is_special(Token token) const;

  // The text of each token; see piece_table.h.
  const PieceTable& pieces() const { return pieces_; }

  // For engine/text only.
  const TandemTokenizer* handle() const { return handle_; }

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

 private:
  Tokenizer() = default;
  // Calls describe(); errors name `file`.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> described(
      std::shared_ptr<Tokenizer> tokenizer, const std::string& file);
  absl::Status describe();  // fills the members below from the handle

  TandemTokenizer* handle_ = nullptr;  // owned
  int vocab_size_ = 0;
  size_t longest_piece_ = 0;
  PieceTable pieces_;
};

}  // namespace tandem
