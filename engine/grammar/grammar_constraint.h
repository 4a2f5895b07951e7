// TokenConstraint by a compiled grammar.
//
// One matcher follows the paths that it is asked about: it rolls back to what two consecutive paths
// share, and consumes the rest. Recent answers are retained, so the rows of a verification reuse
// what was computed for the drafts.
//
// A constraint whose last masks took long has them computed on a thread for slow ones. Then soon()
// does not wait, and other constraints do not wait behind it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "engine/async/worker.h"
#include "engine/base/mutex.h"
#include "engine/pass/constraint.h"
#include "engine/text/grammar.h"

namespace tandem {

// For TokenConstraint::prepare() and post(). Null: no thread, and soon() waits as after() does.
struct GrammarThreads {
  Worker* fast = nullptr;
  Worker* slow = nullptr;  // one thread; null: as `fast`
};

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
  // threads: outlive it.
  static absl::StatusOr<std::shared_ptr<GrammarConstraint>> of(
      std::shared_ptr<const CompiledGrammar> grammar, GrammarThreads threads);
  // For another choice of the request.
  absl::StatusOr<std::shared_ptr<GrammarConstraint>> fork() const { return of(grammar_, threads_); }

  std::shared_ptr<const LegalTokens> after(std::span<const Token> answer) override;
  void prepare(std::vector<Token> answer) override;
  std::optional<std::shared_ptr<const LegalTokens>> soon(std::span<const Token> answer) override;
  void post(absl::AnyInvocable<void()> job) override;
  size_t legal_drafts(std::span<const Token> answer, std::span<const Token> drafts) override;
  std::shared_ptr<const LegalTokens> known(std::span<const Token> answer) override;
  std::span<const Token> ends() const override { return grammar_->vocabulary().ends(); }

  int64_t masks() const { return masks_; }  // computed so far, for tests

 private:
  // A mask of a vocabulary of 150,000 tokens has 19 KB.
  static constexpr size_t kRetained = 32;
  // soon() waits this long. A mask that takes longer is slow, and so are the next ones until this
  // many were fast.
  static constexpr std::chrono::milliseconds kPatience{1};
  static constexpr int kSlowMasks = 16;

  struct Answer {
    uint64_t hash;
    std::vector<Token> path;
    std::shared_ptr<const LegalTokens> legal;  // null: the path is illegal
  };

  GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar, GrammarMatcher matcher,
                    GrammarThreads threads)
      : grammar_(std::move(grammar)), threads_(threads), matcher_(std::move(matcher)) {}

  std::shared_ptr<const LegalTokens> known(uint64_t hash, std::span<const Token> path, bool* found);
  std::list<Answer>::iterator find(uint64_t hash, std::span<const Token> path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers_mutex_);
  void retain(uint64_t hash, std::span<const Token> path, std::shared_ptr<const LegalTokens> legal);

  // The matcher, by threads that hold matcher_mutex_.
  std::shared_ptr<const LegalTokens> compute(std::span<const Token> path);
  // One try, which an error of the matcher ends.
  std::shared_ptr<const LegalTokens> attempt(std::span<const Token> path);
  // Moves the matcher to `path`. False: the path is illegal; the matcher is at its legal part.
  absl::StatusOr<bool> seek(std::span<const Token> path);
  void restart();                                        // after an error of the matcher
  void timed(std::chrono::steady_clock::duration mask);  // of one compute()

  const std::shared_ptr<const CompiledGrammar> grammar_;
  const GrammarThreads threads_;
  std::atomic<int64_t> masks_ = 0;
  std::atomic<int> slow_ = 0;  // masks to come that count as slow

  std::mutex matcher_mutex_;  // held for long: guards the next two members
  GrammarMatcher matcher_;
  std::vector<Token> at_;  // that the matcher has consumed

  Mutex answers_mutex_;
  CondVar answered_;
  std::list<Answer> answers_ ABSL_GUARDED_BY(answers_mutex_);  // the most recent first
};

}  // namespace tandem
