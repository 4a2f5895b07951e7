// PieceTable: what each token adds to decoded text, computed once when a tokenizer is loaded.
//
// Decoders differ, but the ones in use fall into two families where a token's contribution does not
// depend on its neighbours, so that decoding one more token is one table look-up:
//   kBytes   byte-level vocabularies (GPT-2, Llama 3, Qwen): a token is a run of bytes, the text is
//            their concatenation read as UTF-8.
//   kPieces  SentencePiece-like, WordPiece and undecoded vocabularies: a token is a string,
//   different
//            where it is the first of a text ("▁the" -> "the" / " the"); tokens like <0x0A> are
//            single bytes where the decoder has byte fallback.
// Anything else is kOpaque and is decoded by the library over a short window.
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
inline constexpr uint8_t kPieceSpecial = 2;  // left out when special tokens are skipped
inline constexpr uint8_t kPieceByte = 4;     // kPieces: stands for the single byte in its text
inline constexpr uint8_t kPieceWhole = 8;    // its text is complete, valid UTF-8 on its own

class PieceTable {
 public:
  PieceTable() = default;

  PieceKind kind() const { return kind_; }
  size_t size() const { return flags_.size(); }

  // Flags of `token`; 0 where it is outside the vocabulary.
  uint8_t flags(Token token) const {
    return static_cast<size_t>(token) < flags_.size() ? flags_[static_cast<size_t>(token)] : 0;
  }

  // REQUIRES: 0 <= token < size(). Bytes that the token adds to a text, after others and as the
  // first.
  std::string_view text(Token token) const { return slice(text_, text_end_, token); }
  std::string_view first_text(Token token) const {
    return first_end_.empty() ? text(token) : slice(first_, first_end_, token);
  }

  // How many leading `strip_char()`s the whole text loses (SentencePiece's dummy prefix space).
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
  std::string text_;                 // pieces one after another
  std::vector<uint32_t> text_end_;   // [vocab] end of each piece in text_
  std::string first_;                // the same for first pieces; empty where they are equal
  std::vector<uint32_t> first_end_;  // [vocab] or empty
  size_t strip_count_ = 0;
  std::string strip_char_;
};

}  // namespace tandem
