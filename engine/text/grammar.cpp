#include "engine/text/grammar.h"

#include "engine/text/rust/tandem_text.h"
#include "engine/text/rust_result.h"

namespace tandem {

using text_internal::take_status;

namespace {

// Token ids are not negative.
const uint32_t* ids_of(std::span<const Token> tokens) {
  static_assert(sizeof(Token) == sizeof(uint32_t));
  return reinterpret_cast<const uint32_t*>(tokens.data());
}

}  // namespace

GrammarMatcher::~GrammarMatcher() { tandem_matcher_free(handle_); }

absl::StatusOr<GrammarMatcher> GrammarMatcher::copy() const {
  TandemMatcher* made = nullptr;
  TandemBytes error{};
  const TandemCode code = tandem_matcher_copy(handle_, &made, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return GrammarMatcher(made);
}

absl::StatusOr<size_t> GrammarMatcher::advance(std::span<const Token> tokens) {
  size_t legal = 0;
  TandemBytes error{};
  const TandemCode code =
      tandem_matcher_advance(handle_, ids_of(tokens), tokens.size(), &legal, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return legal;
}

absl::Status GrammarMatcher::rollback(size_t count) {
  TandemBytes error{};
  const TandemCode code = tandem_matcher_rollback(handle_, count, &error);
  return take_status(code, error);
}

absl::StatusOr<size_t> GrammarMatcher::validate(std::span<const Token> tokens) {
  size_t legal = 0;
  TandemBytes error{};
  const TandemCode code =
      tandem_matcher_validate(handle_, ids_of(tokens), tokens.size(), &legal, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return legal;
}

absl::StatusOr<bool> GrammarMatcher::mask(std::span<uint32_t> bits) {
  int accepting = 0;
  TandemBytes error{};
  const TandemCode code =
      tandem_matcher_mask(handle_, bits.data(), bits.size(), &accepting, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return accepting != 0;
}

std::vector<Token> GrammarMatcher::forced() {
  const TandemIds ids = tandem_matcher_forced(handle_);
  std::vector<Token> tokens(ids.data, ids.data + ids.size);
  tandem_ids_free(ids);
  return tokens;
}

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::of(
    const Tokenizer& tokenizer, std::vector<Token> ends) {
  std::shared_ptr<GrammarVocabulary> vocabulary(new GrammarVocabulary());
  TandemBytes error{};
  const TandemCode code = tandem_vocabulary_new(tokenizer.handle(), ids_of(ends), ends.size(),
                                                &vocabulary->handle_, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  vocabulary->ends_ = std::move(ends);
  vocabulary->mask_words_ = (static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32;
  return vocabulary;
}

GrammarVocabulary::~GrammarVocabulary() { tandem_vocabulary_free(handle_); }

absl::StatusOr<GrammarMatcher> GrammarVocabulary::compile(const GrammarSpec& spec) const {
  TandemMatcher* made = nullptr;
  TandemBytes error{};
  const TandemCode code = tandem_vocabulary_compile(
      handle_, static_cast<int>(spec.kind), spec.text.data(), spec.text.size(),
      spec.whitespace_pattern.data(), spec.whitespace_pattern.size(), &made, &error);
  if (code != TANDEM_OK) return take_status(code, error);
  return GrammarMatcher(made);
}

}  // namespace tandem
