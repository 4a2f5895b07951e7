// Constraints that are late: soon() does not know, and jobs wait until they are released, in
// virtual time or by the test.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/backend/fake/timer.h"
#include "engine/base/clock.h"
#include "tests/engine/decode/random_constraint.h"

namespace tandem::test {

class LateConstraint final : public TokenConstraint {
 public:
  // The constraint that it stands for. late: whether soon() does not know what follows a path.
  LateConstraint(std::shared_ptr<TokenConstraint> real,
                 std::function<bool(std::span<const Token>)> late,
                 std::function<void(absl::AnyInvocable<void()>)> post)
      : real_(std::move(real)), late_(std::move(late)), post_(std::move(post)) {}

  std::shared_ptr<const LegalTokens> after(std::span<const Token> answer) override {
    return real_->after(answer);
  }
  std::optional<std::shared_ptr<const LegalTokens>> soon(std::span<const Token> answer) override {
    if (!late_(answer)) return real_->after(answer);
    return std::nullopt;
  }
  void post(absl::AnyInvocable<void()> job) override { post_(std::move(job)); }
  void prepare(std::vector<Token> answer) override { real_->prepare(std::move(answer)); }
  size_t legal_drafts(std::span<const Token> answer, std::span<const Token> drafts) override {
    return real_->legal_drafts(answer, drafts);
  }
  std::shared_ptr<const LegalTokens> known(std::span<const Token> answer) override {
    return real_->known(answer);
  }
  std::span<const Token> ends() const override { return real_->ends(); }

 private:
  const std::shared_ptr<TokenConstraint> real_;
  const std::function<bool(std::span<const Token>)> late_;
  const std::function<void(absl::AnyInvocable<void()>)> post_;
};

// Each job waits in virtual time.
inline std::function<void(absl::AnyInvocable<void()>)> after_delay(VirtualTimer* timer,
                                                                   const Clock* clock,
                                                                   Duration delay) {
  return [=](absl::AnyInvocable<void()> job) {
    auto shared = std::make_shared<absl::AnyInvocable<void()>>(std::move(job));
    timer->at(clock->now() + delay, [shared] { (*shared)(); });
  };
}

}  // namespace tandem::test
