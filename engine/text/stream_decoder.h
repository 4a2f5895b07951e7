// StreamDecoder: incremental decoding, one token at a time.
//
// The concatenated output is decode(context + tokens) without decode(context). Each piece is valid
// UTF-8: a character with missing bytes is held back. The cost per token depends only on its text.
//   * Byte-level vocabularies: at most three bytes are held.
//   * Byte fallback: a run of byte tokens is text only if all of it is valid UTF-8, else each byte
//   is
//     U+FFFD. So a run is held until a token that is no byte ends it, or until it is invalid.
//   * WordPiece, Metaspace and vocabularies without a decoder: nothing is held.
//   * Other decoders: the library decodes a window of a few tokens. Exact if a token's text depends
//     only on its predecessor.
// Exception: `clean_up_tokenization_spaces`, which Transformers applies to finished text of non-BPE
// vocabularies, is not applied. It would change text that was already sent.
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
  // context: the end of the prompt; a few tokens suffice, and it may be empty. It decides about a
  // leading space, and the first tokens may complete a character begun there.
  // shown: special tokens that are not skipped.
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                absl::Span<const Token> context = {}, absl::Span<const Token> shown = {});

  // Appends the text that `token` completes to `out`. Ids that name no token add nothing.
  void push(Token token, std::string& out);

  // Appends the held text as decode() does: U+FFFD for an incomplete character. Call once, at the
  // end.
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
  const std::vector<Token> shown_;
  bool fresh_ = true;  // no token pushed since the context

  Utf8Assembler bytes_;  // kBytes: the current character; kPieces: checks the byte run

  // kPieces
  bool first_ = true;         // no token seen yet
  size_t strip_left_ = 0;     // leading characters still to remove
  std::string run_;           // bytes of the current run
  size_t run_given_ = 0;      // leading bytes that belong to the context
  size_t run_whole_ = 0;      // length of its prefix of complete characters
  bool run_invalid_ = false;  // no later byte can make the run valid UTF-8

  // kOpaque: the text of window_[0, read_) was output.
  std::vector<Token> window_;
  size_t read_ = 0;
};

}  // namespace tandem
