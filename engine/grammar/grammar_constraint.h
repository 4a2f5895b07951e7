// TokenConstraint by a compiled grammar.
//
// One matcher follows the paths that it is asked about: it rolls back to what two consecutive paths
// share, and consumes the rest. Recent answers are retained, so the rows of a verification reuse
// what was computed for the drafts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/async/worker.h"
#include "engine/base/mutex.h"
#include "engine/pass/constraint.h"
#include "engine/text/grammar.h"

namespace tandem {

// A compiled grammar, from which each choice of each request copies its matcher. Thread-safe.
class CompiledGrammar {
 public:
  CompiledGrammar(std::shared_ptr<const GrammarVocabulary> vocabulary, GrammarMatcher start)
      : vocabulary_(std::move(vocabulary)), start_(std::move(start)) {}
  absl::StatusOr<GrammarMatcher> start() const;
  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }

 private:
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable Mutex mutex_;
  const GrammarMatcher start_ ABSL_GUARDED_BY(mutex_);  // copies read its caches
};

class GrammarConstraint final : public TokenConstraint,
                                public std::enable_shared_from_this<GrammarConstraint> {
 public:
  // workers: threads for prepare(), outlives it; null: prepare() does nothing.
  static absl::StatusOr<std::shared_ptr<GrammarConstraint>> of(
      std::shared_ptr<const CompiledGrammar> grammar, Worker* workers);
  // For another choice of the request.
  absl::StatusOr<std::shared_ptr<GrammarConstraint>> fork() const { return of(grammar_, workers_); }

  std::shared_ptr<const LegalTokens> after(std::span<const Token> answer) override;
  void prepare(std::vector<Token> answer) override;
  size_t legal_drafts(std::span<const Token> answer, std::span<const Token> drafts) override;
  std::shared_ptr<const LegalTokens> known(std::span<const Token> answer) override;
  std::span<const Token> ends() const override { return grammar_->vocabulary().ends(); }

  int64_t masks() const { return masks_; }  // computed so far, for tests

 private:
  // A mask of a vocabulary of 150,000 tokens has 19 KB.
  static constexpr size_t kRetained = 32;

  struct Answer {
    uint64_t hash;
    std::vector<Token> path;
    std::shared_ptr<const LegalTokens> legal;  // null: the path is illegal
  };

  GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar, GrammarMatcher matcher,
                    Worker* workers)
      : grammar_(std::move(grammar)), workers_(workers), matcher_(std::move(matcher)) {}

  std::shared_ptr<const LegalTokens> known(uint64_t hash, std::span<const Token> path, bool* found);
  void retain(uint64_t hash, std::span<const Token> path, std::shared_ptr<const LegalTokens> legal);

  // The matcher, by threads that hold matcher_mutex_.
  std::shared_ptr<const LegalTokens> compute(std::span<const Token> path);
  // Moves the matcher to `path`. False: the path is illegal; the matcher is at its legal part.
  absl::StatusOr<bool> seek(std::span<const Token> path);
  void restart();  // after an error of the matcher

  const std::shared_ptr<const CompiledGrammar> grammar_;
  Worker* const workers_;
  std::atomic<int64_t> masks_ = 0;

  std::mutex matcher_mutex_;  // held for long: guards the next two members
  GrammarMatcher matcher_;
  std::vector<Token> at_;  // that the matcher has consumed

  Mutex answers_mutex_;
  std::list<Answer> answers_ ABSL_GUARDED_BY(answers_mutex_);  // the most recent first
};

}  // namespace tandem
