// PieceTable: the text that each token adds when decoded, computed once per tokenizer.
//
// Decoders differ, but most fall into two families in which a token's text does not depend on its
// neighbours, so that decoding a token is one table look-up:
//   kBytes   byte-level vocabularies (GPT-2, Llama 3, Qwen): a token is a run of bytes. The text is
//            their concatenation, read as UTF-8.
//   kPieces  SentencePiece-like, WordPiece and undecoded vocabularies: a token is a string, which
//            differs at the start of a text ("▁the" -> "the" / " the"). Tokens like <0x0A> are
//            single bytes if the decoder has byte fallback.
// Other decoders are kOpaque: the library decodes a short window of tokens.
//
// Threading: immutable after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"

namespace tandem {

enum class PieceKind : uint8_t { kOpaque = 0, kBytes = 1, kPieces = 2 };

// Flags of one token.
inline constexpr uint8_t kPiecePresent = 1;  // the id names a token
inline constexpr uint8_t kPieceSpecial = 2;  // omitted when special tokens are skipped
inline constexpr uint8_t kPieceByte = 4;     // kPieces: its text is a single byte
inline constexpr uint8_t kPieceWhole = 8;    // its text alone is valid UTF-8

class PieceTable {
 public:
  PieceTable() = default;

  PieceKind kind() const { return kind_; }
  size_t size() const { return flags_.size(); }

  // Flags of `token`; 0 outside the vocabulary.
  uint8_t flags(Token token) const {
    return static_cast<size_t>(token) < flags_.size() ? flags_[static_cast<size_t>(token)] : 0;
  }

  // Bytes that the token adds to a text after other tokens, and as the first token. REQUIRES:
  // 0 <= token < size().
  std::string_view text(Token token) const { return slice(text_, text_end_, token); }
  std::string_view first_text(Token token) const {
    return first_end_.empty() ? text(token) : slice(first_, first_end_, token);
  }

  // Number of leading strip_char() removed from the whole text (SentencePiece's dummy prefix).
  size_t strip_count() const { return strip_count_; }
  const std::string& strip_char() const { return strip_char_; }

 private:
  friend class Tokenizer;

  static std::string_view slice(const std::string& blob, const std::vector<uint32_t>& end,
                                Token t) {
    const size_t i = static_cast<size_t>(t);
    const uint32_t begin = i == 0 ? 0 : end[i - 1];
    return std::string_view(blob).substr(begin, end[i] - begin);
  }

  PieceKind kind_ = PieceKind::kOpaque;
  std::vector<uint8_t> flags_;       // [vocab]
  std::string text_;                 // concatenated pieces
  std::vector<uint32_t> text_end_;   // [vocab]: end of each piece in text_
  std::string first_;                // the same for first pieces; empty: equal to text_
  std::vector<uint32_t> first_end_;  // [vocab] or empty
  size_t strip_count_ = 0;
  std::string strip_char_;
};

}  // namespace tandem
