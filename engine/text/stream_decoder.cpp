#include "engine/text/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

namespace tandem {
namespace {

// kOpaque: the window is cut when it ends in complete characters, or at this length.
constexpr size_t kMaxWindow = 64;

bool ends_with_replacement(std::string_view text) {
  return text.size() >= kReplacementCharacter.size() &&
         text.substr(text.size() - kReplacementCharacter.size()) == kReplacementCharacter;
}

}  // namespace

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                             absl::Span<const Token> context, absl::Span<const Token> shown)
    : tokenizer_(std::move(tokenizer)),
      pieces_(tokenizer_->pieces()),
      skip_special_tokens_(skip_special_tokens),
      shown_(shown.begin(), shown.end()),
      strip_left_(pieces_.strip_count()) {
  std::string given;
  for (const Token token : context) push(token, given);
  fresh_ = true;
  run_given_ = run_whole_;
}

void StreamDecoder::push(Token token, std::string& out) {
  const uint8_t flags = pieces_.flags(token);
  if ((flags & kPiecePresent) == 0) return;
  if (skip_special_tokens_ && (flags & kPieceSpecial) != 0) {
    if (std::find(shown_.begin(), shown_.end(), token) == shown_.end()) return;
    if (pieces_.kind() == PieceKind::kOpaque) {  // a window would skip it
      finish(out);
      out.append(tokenizer_->token_bytes(token));
      return;
    }
  }
  fresh_ = false;
  switch (pieces_.kind()) {
    case PieceKind::kBytes:
      if (bytes_.at_boundary() && (flags & kPieceWhole) != 0) {
        out.append(pieces_.text(token));
      } else {
        bytes_.push(pieces_.text(token), out);
      }
      return;
    case PieceKind::kPieces:
      push_piece(token, flags, out);
      return;
    case PieceKind::kOpaque:
      push_opaque(token, out);
      return;
  }
}

void StreamDecoder::push_piece(Token token, uint8_t flags, std::string& out) {
  const std::string_view text = first_ ? pieces_.first_text(token) : pieces_.text(token);
  first_ = false;
  if ((flags & kPieceByte) != 0) {
    push_byte(text[0], out);
    return;
  }
  end_run(out);
  append_stripped(text, out);
}

void StreamDecoder::push_byte(char byte, std::string& out) {
  if (run_invalid_) {
    append_stripped(kReplacementCharacter, out);
    return;
  }
  run_.push_back(byte);
  std::string ignored;
  run_invalid_ = !bytes_.push_byte(byte, ignored);
  if (bytes_.at_boundary()) run_whole_ = run_.size();
  if (!run_invalid_) return;
  // The run is invalid: each of its bytes, and each later one, is U+FFFD.
  for (size_t i = run_given_; i < run_.size(); ++i) append_stripped(kReplacementCharacter, out);
  run_.clear();
  run_given_ = run_whole_ = 0;
}

void StreamDecoder::end_run(std::string& out) {
  if (bytes_.at_boundary()) {
    append_stripped(std::string_view(run_).substr(run_given_), out);
  } else {
    for (size_t i = run_given_; i < run_.size(); ++i) append_stripped(kReplacementCharacter, out);
  }
  run_.clear();
  run_given_ = run_whole_ = 0;
  run_invalid_ = false;
  bytes_.clear();
}

void StreamDecoder::append_stripped(std::string_view text, std::string& out) {
  while (strip_left_ > 0 && !text.empty()) {
    const std::string& strip = pieces_.strip_char();
    if (text.substr(0, strip.size()) != strip) {
      strip_left_ = 0;
      break;
    }
    text.remove_prefix(strip.size());
    --strip_left_;
  }
  out.append(text);
}

std::string StreamDecoder::decode_window(size_t begin, size_t end) const {
  const auto window = absl::MakeConstSpan(window_).subspan(begin, end - begin);
  absl::StatusOr<std::string> text = tokenizer_->decode(window, skip_special_tokens_);
  return text.ok() ? *std::move(text) : std::string();
}

namespace {

// Appends the part of `after` behind the length of `before`, the text of fewer tokens, from the
// next character boundary on. `before` need not be a prefix of `after`.
void append_behind(const std::string& before, const std::string& after, std::string& out) {
  size_t at = before.size();
  while (at < after.size() && (static_cast<uint8_t>(after[at]) & 0xC0) == 0x80) ++at;
  if (at < after.size()) out.append(after, at, std::string::npos);
}

}  // namespace

void StreamDecoder::push_opaque(Token token, std::string& out) {
  window_.push_back(token);
  const std::string before = decode_window(0, read_);
  const std::string after = decode_window(0, window_.size());
  const bool whole = !ends_with_replacement(after);
  if (after.size() <= before.size() || (!whole && window_.size() < kMaxWindow)) return;
  append_behind(before, after, out);
  // What was read so far is no longer needed; the tokens just read are the next context.
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(read_));
  read_ = window_.size();
}

void StreamDecoder::finish(std::string& out) {
  if (fresh_) return;
  switch (pieces_.kind()) {
    case PieceKind::kBytes:
      bytes_.finish(out);
      return;
    case PieceKind::kPieces:
      end_run(out);
      return;
    case PieceKind::kOpaque: {
      const std::string before = decode_window(0, read_);
      const std::string after = decode_window(0, window_.size());
      append_behind(before, after, out);
      window_.clear();
      read_ = 0;
      return;
    }
  }
}

}  // namespace tandem
