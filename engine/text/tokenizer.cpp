#include "engine/text/tokenizer.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/text/rust/tandem_text.h"
#include "engine/text/rust_result.h"
#include "engine/text/utf8.h"

namespace tandem {

using text_internal::take_status;
using text_internal::take_string;

namespace {

std::vector<uint32_t> take_ids(TandemIds ids) {
  std::vector<uint32_t> result(ids.data, ids.data + ids.size);
  tandem_ids_free(ids);
  return result;
}

std::string utf8_of(uint32_t code_point) {
  const auto tail = [code_point](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  if (code_point < 0x800) return {static_cast<char>(0xC0 | (code_point >> 6)), tail(0)};
  if (code_point < 0x10000) {
    return {static_cast<char>(0xE0 | (code_point >> 12)), tail(6), tail(0)};
  }
  return {static_cast<char>(0xF0 | (code_point >> 18)), tail(12), tail(6), tail(0)};
}

// A panic of the library while it loads a file means that the file is invalid.
absl::Status load_error(TandemCode code, TandemBytes error, const std::string& file) {
  absl::Status status = take_status(code, error);
  if (absl::IsInternal(status)) {
    status = absl::InvalidArgumentError(absl::StrCat(file, ": ", status.message()));
  }
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::described(
    std::shared_ptr<Tokenizer> tokenizer, const std::string& file) {
  const absl::Status status = tokenizer->describe();
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
  }
  return tokenizer;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& directory) {
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
  TandemBytes error{};
  const TandemCode code =
      tandem_tokenizer_load(directory.data(), directory.size(), &tokenizer->handle_, &error);
  const std::string file = absl::StrCat(directory, "/tokenizer.json");
  if (code != TANDEM_OK) return load_error(code, error, file);
  return described(std::move(tokenizer), file);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::parse(const std::string& name,
                                                                  const std::string& json,
                                                                  const std::string& config) {
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
  TandemBytes error{};
  const TandemCode code =
      tandem_tokenizer_parse(name.data(), name.size(), json.data(), json.size(), config.data(),
                             config.size(), &tokenizer->handle_, &error);
  if (code != TANDEM_OK) return load_error(code, error, name);
  return described(std::move(tokenizer), name);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::load_bytes() {
  const std::string name = "tokenizer of bytes";
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
  TandemBytes error{};
  const TandemCode code = tandem_tokenizer_bytes(&tokenizer->handle_, &error);
  if (code != TANDEM_OK) return load_error(code, error, name);
  return described(std::move(tokenizer), name);
}

std::shared_ptr<const Tokenizer> Tokenizer::bytes() { return *load_bytes(); }

absl::Status Tokenizer::describe() {
  const size_t vocab_size = tandem_tokenizer_vocab_size(handle_);
  if (vocab_size == 0 || vocab_size > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "vocabulary size ", vocab_size, ", allowed 1 to ", std::numeric_limits<int32_t>::max()));
  }
  vocab_size_ = static_cast<int>(vocab_size);

  // The post-processor adds the same ids, given in the file, to every text.
  // Also compiles the expressions of the pre-tokenizer, which no later call would try again.
  const absl::StatusOr<std::vector<Token>> added = encode("", true);
  if (absl::IsInternal(
          added.status())) {  // a panic: a template names a token that is not described
    return absl::InvalidArgumentError(
        absl::StrCat("an empty text cannot be encoded: ", added.status().message(),
                     "; every token of post_processor must be in its special_tokens"));
  }
  TANDEM_RETURN_IF_ERROR(added.status());
  for (const Token id : *added) {
    if (id >= 0 && id < vocab_size_) continue;
    return absl::InvalidArgumentError(absl::StrCat("post_processor: adds token ",
                                                   static_cast<uint32_t>(id), ", allowed 0 to ",
                                                   vocab_size_ - 1));
  }

  TandemPieces pieces{};
  TandemBytes error{};
  const TandemCode code = tandem_tokenizer_pieces(handle_, &pieces, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  PieceTable& table = pieces_;
  table.kind_ = static_cast<PieceKind>(pieces.kind);
  table.flags_.assign(pieces.flags.data, pieces.flags.data + pieces.flags.size);
  tandem_bytes_free(pieces.flags);
  table.text_ = take_string(pieces.text);
  table.text_end_ = take_ids(pieces.text_end);
  table.first_ = take_string(pieces.first);
  table.first_end_ = take_ids(pieces.first_end);
  table.strip_count_ = pieces.strip_count;
  table.strip_char_ = pieces.strip_count > 0 ? utf8_of(pieces.strip_char) : "";
  const bool sliced = table.text_end_.size() == table.flags_.size();
  for (Token t = 0; t < static_cast<Token>(table.flags_.size()); ++t) {
    longest_piece_ = std::max(longest_piece_, sliced ? table.text(t).size() : token_text(t).size());
  }
  return absl::OkStatus();
}

Tokenizer::~Tokenizer() { tandem_tokenizer_free(handle_); }

absl::StatusOr<std::vector<Token>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                                     SpecialText special_text) const {
  const size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: invalid UTF-8 at byte ", valid, " of ", text.size()));
  }
  TandemIds ids{};
  TandemBytes error{};
  const TandemCode code =
      tandem_tokenizer_encode(handle_, text.data(), text.size(), add_special_tokens ? 1 : 0,
                              static_cast<int>(special_text), &ids, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  std::vector<Token> tokens(ids.data, ids.data + ids.size);
  tandem_ids_free(ids);
  return tokens;
}

absl::StatusOr<std::string> Tokenizer::decode(absl::Span<const Token> ids,
                                              bool skip_special_tokens) const {
  std::vector<uint32_t> unsigned_ids;
  unsigned_ids.reserve(ids.size());
  for (const Token id : ids) {
    if (id < 0 || id >= vocab_size_) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", id, " at position ",
                                                     unsigned_ids.size(), ": allowed 0 to ",
                                                     vocab_size_ - 1));
    }
    unsigned_ids.push_back(static_cast<uint32_t>(id));
  }
  TandemBytes text{};
  TandemBytes error{};
  const TandemCode code = tandem_tokenizer_decode(handle_, unsigned_ids.data(), unsigned_ids.size(),
                                                  skip_special_tokens ? 1 : 0, &text, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return take_string(text);
}

std::string Tokenizer::token_text(Token token) const {
  if (token < 0 || token >= vocab_size_) return "";
  return take_string(tandem_tokenizer_token_text(handle_, static_cast<uint32_t>(token)));
}

std::string Tokenizer::token_bytes(Token token) const {
  if (pieces_.kind() != PieceKind::kOpaque) {
    const bool present = token >= 0 && (pieces_.flags(token) & kPiecePresent) != 0;
    return present ? std::string(pieces_.text(token)) : "";
  }
  const absl::StatusOr<std::string> text = decode(absl::MakeConstSpan(&token, 1), false);
  return text.ok() ? *text : "";
}

std::optional<Token> Tokenizer::token_id(std::string_view text) const {
  const int64_t id = tandem_tokenizer_token_id(handle_, text.data(), text.size());
  if (id < 0 || id >= vocab_size_) return std::nullopt;
  return static_cast<Token>(id);
}

bool Tokenizer::is_special(Token token) const {
  return (pieces_.flags(token) & kPieceSpecial) != 0;
}

}  // namespace tandem
