// Tokenizer: text to vocabulary ids and back, for one `tokenizer.json`.
//
// The work is done by the `tokenizers` library behind the C ABI of engine/text/rust; this class
// adds what Transformers adds around it (tokens of tokenizer_config.json, clean-up of spaces) and
// turns everything that can go wrong into a Status. For incremental decoding see stream_decoder.h.
//
// Threading: immutable after load(); every method may be called from any thread at once.
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

// What to do with text that spells a special token, such as "</s>" typed by a user.
enum class SpecialText {
  kAsConfigured,  // the model's `split_special_tokens`; without it, as kParse (Transformers'
                  // default)
  kParse,         // it becomes the special token
  kPlain,         // it is ordinary text; non-special added tokens are still recognised
};

class Tokenizer {
 public:
  // Reads `directory`/tokenizer.json and, where they exist, tokenizer_config.json,
  // special_tokens_map.json and added_tokens.json as Transformers reads them. Truncation and
  // padding stored in tokenizer.json are ignored, as Transformers ignores them when nothing asks
  // for them. Errors: NOT_FOUND (no tokenizer.json), INVALID_ARGUMENT (a file that cannot be
  // understood); the message names the file.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> load(const std::string& directory);

  // The same from the texts of tokenizer.json and tokenizer_config.json, for models that have
  // neither file; `name` stands for both in messages.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> parse(const std::string& name,
                                                                const std::string& json,
                                                                const std::string& config);

  // Bytes as tokens 0 to 255 and "<|endoftext|>" as 256, for models that have no directory.
  static std::shared_ptr<const Tokenizer> bytes();

  // Ids of `text`. With `add_special_tokens` the post-processor adds what the model expects around
  // a text (for example a begin-of-text token). Errors: INVALID_ARGUMENT with the byte offset where
  // `text` is not UTF-8; INTERNAL where the library fails.
  absl::StatusOr<std::vector<Token>> encode(
      std::string_view text, bool add_special_tokens,
      SpecialText special_text = SpecialText::kAsConfigured) const;

  // Text of `ids`, always valid UTF-8 (bytes that form no character become U+FFFD). Ids inside the
  // vocabulary range that name no token give no text. Errors: INVALID_ARGUMENT naming the first id
  // outside [0, vocab_size()) and that range.
  absl::StatusOr<std::string> decode(absl::Span<const Token> ids, bool skip_special_tokens) const;

  // The largest id + 1, added tokens included: every id that encode() returns is below it.
  int vocab_size() const { return vocab_size_; }

  // Bytes of the longest token, as a text spells it: no text of n tokens has more than n times as
  // many, but where the tokenizer drops what it reads (runs of blanks, accents, unknown words).
  size_t longest_piece() const { return longest_piece_; }

  // The vocabulary's spelling of a token ("Ġthe", "▁the", "<0x0A>"); empty where there is none.
  std::string token_text(Token token) const;

  // What the token adds to a text, after other tokens: bytes, which need not be UTF-8 where a
  // character is spread over several tokens. Of a special token too. Empty where there is none.
  std::string token_bytes(Token token) const;
  std::optional<Token> token_id(std::string_view text) const;

  // Whether decode() leaves the token out when special tokens are skipped. False out of range.
  bool is_special(Token token) const;

  // What each token contributes to the text; see piece_table.h.
  const PieceTable& pieces() const { return pieces_; }

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

 private:
  Tokenizer() = default;
  // The tokenizer described, or what is wrong with `file`, which it was made of.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> described(
      std::shared_ptr<Tokenizer> tokenizer, const std::string& file);
  absl::Status describe();  // fills what follows from the handle

  TandemTokenizer* handle_ = nullptr;  // owned
  int vocab_size_ = 0;
  size_t longest_piece_ = 0;
  PieceTable pieces_;
};

}  // namespace tandem
