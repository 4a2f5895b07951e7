#include "engine/grammar/grammars.h"

#include <algorithm>

#include "engine/base/status.h"

namespace tandem {
namespace {

size_t bytes_of(const GrammarSpec& spec) {
  return spec.text.size() + spec.whitespace_pattern.size();
}

}  // namespace

absl::StatusOr<std::shared_ptr<GrammarConstraint>> Grammars::constraint(
    const std::string& client, const std::shared_ptr<const Tokenizer>& tokenizer,
    const std::vector<Token>& ends, const GrammarSpec& spec) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const GrammarVocabulary> words,
                          vocabulary(tokenizer, ends));
  std::shared_ptr<const CompiledGrammar> grammar = find(client, words.get(), spec);
  if (grammar == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(GrammarMatcher start, words->compile(spec));
    grammar = std::make_shared<const CompiledGrammar>(words, std::move(start));
    retain({client, words.get(), spec, grammar});
  }
  return GrammarConstraint::of(std::move(grammar), {&fast_, &slow_});
}

int64_t Grammars::compiled() const {
  const MutexLock lock(&mutex_);
  return compiled_;
}

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> Grammars::vocabulary(
    const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<Token>& ends) {
  const MutexLock lock(&vocabularies_mutex_);
  std::shared_ptr<const GrammarVocabulary>& known = vocabularies_[{tokenizer, ends}];
  if (known == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(known, GrammarVocabulary::of(*tokenizer, ends));
  }
  return known;
}

std::shared_ptr<const CompiledGrammar> Grammars::find(const std::string& client,
                                                      const GrammarVocabulary* vocabulary,
                                                      const GrammarSpec& spec) {
  const MutexLock lock(&mutex_);
  const auto found = std::ranges::find_if(entries_, [&](const Entry& e) {
    return e.vocabulary == vocabulary && e.client == client && e.spec == spec;
  });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->grammar;
}

void Grammars::retain(Entry entry) {
  const MutexLock lock(&mutex_);
  ++compiled_;
  text_ += bytes_of(entry.spec);
  entries_.push_front(std::move(entry));
  while (entries_.size() > kRetained || text_ > kRetainedText) {
    text_ -= bytes_of(entries_.back().spec);
    entries_.pop_back();
  }
}

}  // namespace tandem
