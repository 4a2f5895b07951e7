#include "engine/grammar/grammar_constraint.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/status.h"

namespace tandem {
namespace {

uint64_t hash_of(std::span<const Token> path) {
  uint64_t h = path.size();
  for (const Token t : path) h = (h ^ static_cast<uint64_t>(t)) * 0x9e3779b97f4a7c15ULL;
  return h ^ (h >> 32);
}

}  // namespace

absl::StatusOr<GrammarMatcher> CompiledGrammar::start() const {
  const MutexLock lock(&mutex_);
  return start_.copy();
}

absl::StatusOr<std::shared_ptr<GrammarConstraint>> GrammarConstraint::of(
    std::shared_ptr<const CompiledGrammar> grammar, GrammarThreads threads) {
  TANDEM_ASSIGN_OR_RETURN(GrammarMatcher matcher, grammar->start());
  return std::shared_ptr<GrammarConstraint>(
      new GrammarConstraint(std::move(grammar), std::move(matcher), threads));
}

std::shared_ptr<const LegalTokens> GrammarConstraint::after(std::span<const Token> answer) {
  const uint64_t hash = hash_of(answer);
  bool found = false;
  if (auto legal = known(hash, answer, &found); found) return legal;
  const std::lock_guard lock(matcher_mutex_);
  if (auto legal = known(hash, answer, &found); found) return legal;  // computed meanwhile
  const auto begin = std::chrono::steady_clock::now();
  std::shared_ptr<const LegalTokens> legal = compute(answer);
  timed(std::chrono::steady_clock::now() - begin);
  retain(hash, answer, legal);
  return legal;
}

void GrammarConstraint::timed(std::chrono::steady_clock::duration mask) {
  if (mask > kPatience) {
    slow_ = kSlowMasks;
  } else if (slow_ > 0) {
    --slow_;
  }
}

void GrammarConstraint::prepare(std::vector<Token> answer) {
  if (threads_.fast == nullptr) return;
  bool found = false;
  known(hash_of(answer), answer, &found);
  if (!found) post([this, answer = std::move(answer)] { after(answer); });
}

std::optional<std::shared_ptr<const LegalTokens>> GrammarConstraint::soon(
    std::span<const Token> answer) {
  if (threads_.fast == nullptr) return after(answer);
  const uint64_t hash = hash_of(answer);
  bool found = false;
  std::shared_ptr<const LegalTokens> legal = known(hash, answer, &found);
  if (found) return legal;
  prepare({answer.begin(), answer.end()});
  if (slow_ > 0) return std::nullopt;
  MutexLock lock(&answers_mutex_);
  auto at = answers_.end();
  const auto is_known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers_mutex_) {
    at = find(hash, answer);
    return at != answers_.end();
  };
  if (!answered_.wait_for(lock, kPatience, is_known)) return std::nullopt;
  return at->legal;
}

void GrammarConstraint::post(absl::AnyInvocable<void()> job) {
  if (threads_.fast == nullptr) return job();
  Worker* const thread = slow_ > 0 && threads_.slow != nullptr ? threads_.slow : threads_.fast;
  thread->post([self = shared_from_this(), job = std::move(job)]() mutable { job(); });
}

std::shared_ptr<const LegalTokens> GrammarConstraint::known(std::span<const Token> answer) {
  bool found = false;
  return known(hash_of(answer), answer, &found);
}

size_t GrammarConstraint::legal_drafts(std::span<const Token> answer,
                                       std::span<const Token> drafts) {
  const std::unique_lock lock(matcher_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return drafts.size();
  const absl::StatusOr<bool> there = seek(answer);
  if (there.ok() && !*there) return 0;
  if (there.ok()) {
    if (const absl::StatusOr<size_t> legal = matcher_.validate(drafts); legal.ok()) return *legal;
  }
  restart();
  return drafts.size();
}

std::shared_ptr<const LegalTokens> GrammarConstraint::known(uint64_t hash,
                                                            std::span<const Token> path,
                                                            bool* found) {
  const MutexLock lock(&answers_mutex_);
  const auto at = find(hash, path);
  *found = at != answers_.end();
  if (!*found) return nullptr;
  answers_.splice(answers_.begin(), answers_, at);
  return at->legal;
}

std::list<GrammarConstraint::Answer>::iterator GrammarConstraint::find(
    uint64_t hash, std::span<const Token> path) {
  return std::ranges::find_if(answers_, [&](const Answer& a) {
    return a.hash == hash && std::ranges::equal(a.path, path);
  });
}

void GrammarConstraint::retain(uint64_t hash, std::span<const Token> path,
                               std::shared_ptr<const LegalTokens> legal) {
  const MutexLock lock(&answers_mutex_);
  if (answers_.size() >= kRetained) answers_.pop_back();
  answers_.push_front({hash, {path.begin(), path.end()}, std::move(legal)});
  answered_.notify_all();
}

std::shared_ptr<const LegalTokens> GrammarConstraint::compute(std::span<const Token> path) {
  const bool followed = !at_.empty();
  std::shared_ptr<const LegalTokens> legal = attempt(path);
  if (legal == nullptr || legal->status.ok()) return legal;
  restart();
  // Other paths counted towards its limits, and methods differ in the paths that they ask for.
  if (!followed) return legal;
  legal = attempt(path);
  if (legal != nullptr && !legal->status.ok()) restart();
  return legal;
}

std::shared_ptr<const LegalTokens> GrammarConstraint::attempt(std::span<const Token> path) {
  const absl::StatusOr<bool> there = seek(path);
  if (there.ok() && !*there) return nullptr;
  auto legal = std::make_shared<LegalTokens>();
  legal->status = there.status();
  if (there.ok()) {
    ++masks_;
    legal->bits.resize(grammar_->vocabulary().mask_words());
    const absl::StatusOr<bool> may_end = matcher_.mask(legal->bits);
    legal->status = may_end.status();
    legal->may_end = may_end.ok() && *may_end;
  }
  if (!legal->status.ok()) {
    legal->bits.clear();
    return legal;
  }
  int legal_tokens = 0;
  for (const uint32_t word : legal->bits) legal_tokens += std::popcount(word);
  if (legal_tokens == 1 && !legal->may_end) legal->forced = matcher_.forced();
  return legal;
}

absl::StatusOr<bool> GrammarConstraint::seek(std::span<const Token> path) {
  const auto shared = static_cast<size_t>(std::ranges::mismatch(at_, path).in1 - at_.begin());
  if (shared < at_.size()) {
    TANDEM_RETURN_IF_ERROR(matcher_.rollback(at_.size() - shared));
    at_.resize(shared);
  }
  TANDEM_ASSIGN_OR_RETURN(const size_t legal, matcher_.advance(path.subspan(shared)));
  at_.insert(at_.end(), path.begin() + static_cast<ptrdiff_t>(shared),
             path.begin() + static_cast<ptrdiff_t>(shared + legal));
  return at_.size() == path.size();
}

void GrammarConstraint::restart() {
  at_.clear();
  // A copy of a matcher without error has none. If it cannot be made, the next call fails again.
  if (absl::StatusOr<GrammarMatcher> fresh = grammar_->start(); fresh.ok()) {
    matcher_ = *std::move(fresh);
  }
}

}  // namespace tandem
