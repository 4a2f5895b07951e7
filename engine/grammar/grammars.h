// Compiled grammars of all deployments, and the threads that prepare what may come next.
//
// A vocabulary is made at the first constraint of a tokenizer (about a tenth of a second for
// 150,000 tokens). Compiled grammars are retained per client, least recently used first out, so
// that no client sees from timings what another one sends.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/async/worker.h"
#include "engine/base/mutex.h"
#include "engine/grammar/grammar_constraint.h"
#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"

namespace tandem {

class Grammars {
 public:
  static constexpr size_t kRetained = 64;           // compiled grammars
  static constexpr size_t kRetainedText = 4 << 20;  // bytes of their specs

  Grammars() : slow_(1, {}, "slow grammars"), fast_(1, {}, "grammars") {}

  // The constraint of one choice. ends: end-of-text tokens. Errors: INVALID_ARGUMENT as of
  // GrammarVocabulary.
  absl::StatusOr<std::shared_ptr<GrammarConstraint>> constraint(
      const std::string& client, const std::shared_ptr<const Tokenizer>& tokenizer,
      const std::vector<Token>& ends, const GrammarSpec& spec);

  int64_t compiled() const;  // so far

 private:
  using VocabularyKey = std::pair<std::shared_ptr<const Tokenizer>, std::vector<Token>>;
  struct Entry {
    std::string client;
    const GrammarVocabulary* vocabulary;
    GrammarSpec spec;
    std::shared_ptr<const CompiledGrammar> grammar;
  };

  absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary(
      const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<Token>& ends);
  std::shared_ptr<const CompiledGrammar> find(const std::string& client,
                                              const GrammarVocabulary* vocabulary,
                                              const GrammarSpec& spec);
  void retain(Entry entry);

  Mutex vocabularies_mutex_;  // held while one is made
  std::map<VocabularyKey, std::shared_ptr<const GrammarVocabulary>> vocabularies_
      ABSL_GUARDED_BY(vocabularies_mutex_);

  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the most recent first
  size_t text_ ABSL_GUARDED_BY(mutex_) = 0;           // bytes of their specs
  int64_t compiled_ ABSL_GUARDED_BY(mutex_) = 0;

  // Last: their jobs use constraints, and those of fast_ post to slow_.
  Worker slow_;
  Worker fast_;
};

}  // namespace tandem
