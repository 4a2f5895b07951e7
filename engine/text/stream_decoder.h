// StreamDecoder: text of a growing token sequence, one token at a time.
//
// The pieces handed out, one after another, are decode(context + tokens) without decode(context),
// and each is valid UTF-8: a character whose bytes have not all arrived is held back. A token costs
// the size of its own text, whatever came before.
//   * Byte-level vocabularies: at most three bytes are held.
//   * Byte fallback: a run of byte tokens is text only if all of it is valid UTF-8 (else each byte
//   is
//     U+FFFD), so a run is held until a token that is no byte ends it or it can no longer be valid.
//   * WordPiece, Metaspace and vocabularies without a decoder: nothing is held.
//   * Other decoders: the library decodes a window of a few tokens; exact where a token's text
//   depends
//     on its predecessor only.
// Exception: `clean_up_tokenization_spaces` (which Transformers applies to the finished text of
// vocabularies that are not BPE) is not applied: it would rewrite text that was already sent.
//
// Threading: one thread at a time; the tokenizer is shared.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace tandem {

class StreamDecoder {
 public:
  // `context` is the end of the prompt (a few tokens are enough, empty is allowed): it decides
  // whether a leading space is kept, and a character begun there is finished by the first tokens
  // pushed.
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                absl::Span<const Token> context = {});

  // Appends to `out` the text that `token` completes; may be nothing. A token outside the
  // vocabulary adds nothing, like a hole in it.
  void push(Token token, std::string& out);

  // Appends what is held, as decode() gives it: U+FFFD for a character that never became whole.
  // Call once, at the end.
  void finish(std::string& out);

 private:
  void push_piece(Token token, uint8_t flags, std::string& out);
  void push_byte(char byte, std::string& out);
  void end_run(std::string& out);
  void push_opaque(Token token, std::string& out);
  std::string decode_window(size_t begin, size_t end) const;
  void append_stripped(std::string_view text, std::string& out);

  std::shared_ptr<const Tokenizer> tokenizer_;
  const PieceTable& pieces_;
  const bool skip_special_tokens_;
  bool fresh_ = true;  // no token pushed since the context

  Utf8Assembler bytes_;  // kBytes: the character in progress; kPieces: checks the byte run

  // kPieces
  bool first_ = true;         // no token seen yet
  size_t strip_left_ = 0;     // leading characters still to be removed
  std::string run_;           // bytes of the run in progress
  size_t run_given_ = 0;      // of those, how many belong to the context's text
  size_t run_whole_ = 0;      // length of the run's prefix of complete characters
  bool run_invalid_ = false;  // the run can no longer become valid UTF-8

  // kOpaque: window_[0, read_) has been handed out.
  std::vector<Token> window_;
  size_t read_ = 0;
};

}  // namespace tandem
