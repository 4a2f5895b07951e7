// Grammars: compiled constraints on a text, as sets of tokens that may come next.
//
// llguidance does the work behind the C ABI of engine/text/rust. A GrammarVocabulary has the bytes
// of a tokenizer's tokens. It compiles a GrammarSpec to a GrammarMatcher, a position in the
// grammar. Forced tokens are spelled by the tokenizer itself. Ids that the tokenizer does not use
// are never legal, and special tokens only where the grammar names them.
//
// Untrusted specs are safe: size, time and memory of compilation and of each step are bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/text/tokenizer.h"

struct TandemMatcher;     // engine/text/rust/tandem_text.h
struct TandemVocabulary;  // likewise

namespace tandem {

struct GrammarSpec {
  // In the order of tandem_vocabulary_compile().
  enum class Kind : uint8_t {
    kJsonSchema,     // text: a JSON schema
    kJsonObject,     // any JSON object; text is unused
    kRegex,          // text: matches the whole answer; syntax of the Rust crate regex
    kChoice,         // text: a JSON array of the allowed answers
    kGrammar,        // text: Lark as llguidance reads it, or GBNF if it contains "::="
    kStructuralTag,  // text: {"structures": [{"begin", "schema", "end"}], "triggers": []}
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
  // Regular expression of what may separate JSON tokens. Empty: at most 32 whitespace characters.
  std::string whitespace_pattern;

  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// A position in a grammar. Not thread-safe. After an error all calls fail. Errors are
// RESOURCE_EXHAUSTED: a step exceeded the limits.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(TandemMatcher* handle) : handle_(handle) {}
  GrammarMatcher(GrammarMatcher&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  GrammarMatcher& operator=(GrammarMatcher&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }
  ~GrammarMatcher();

  absl::StatusOr<GrammarMatcher> copy() const;
  // Consumes leading tokens as far as they are legal. Returns their number.
  absl::StatusOr<size_t> advance(std::span<const Token> tokens);
  // Takes back the last `count` tokens. REQUIRES: they were consumed.
  absl::Status rollback(size_t count);
  // The number of leading tokens that advance() would consume.
  absl::StatusOr<size_t> validate(std::span<const Token> tokens);
  // Sets bit t % 32 of bits[t / 32] for each legal token t. Returns whether the text may end here.
  absl::StatusOr<bool> mask(std::span<uint32_t> bits);
  // Tokens that must come next, one after the other; may be empty.
  std::vector<Token> forced();

 private:
  TandemMatcher* handle_;  // owned
};

// Thread-safe.
class GrammarVocabulary {
 public:
  // ends: end-of-text tokens, legal where a text may end. Errors: INVALID_ARGUMENT if `ends` is
  // empty, or the tokenizer has no table of bytes (PieceKind::kOpaque).
  static absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> of(const Tokenizer& tokenizer,
                                                                     std::vector<Token> ends);
  // Takes milliseconds. Errors: INVALID_ARGUMENT naming the kind, and the JSON pointer of a schema
  // keyword that is not supported.
  absl::StatusOr<GrammarMatcher> compile(const GrammarSpec& spec) const;

  const std::vector<Token>& ends() const { return ends_; }
  size_t mask_words() const { return mask_words_; }  // of GrammarMatcher::mask()

  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;
  ~GrammarVocabulary();

 private:
  GrammarVocabulary() = default;

  TandemVocabulary* handle_ = nullptr;  // owned
  std::vector<Token> ends_;
  size_t mask_words_ = 0;
};

}  // namespace tandem
