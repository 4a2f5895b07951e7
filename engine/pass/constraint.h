// A constraint on an answer: which tokens may follow its tokens so far.
//
// It is a pure function of these tokens. Every row of every model that reads the same path gets the
// same set. So drafts and verification agree, and constrained output is that of constrained
// autoregressive decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "engine/base/ids.h"

namespace tandem {

// The tokens that may come next.
struct LegalTokens {
  std::vector<uint32_t> bits;  // token t: bit t % 32 of bits[t / 32]; ids beyond it are illegal
  bool may_end = false;        // the answer may end here: its end tokens are among them
  absl::Status status;         // not OK: a limit was exceeded, and no token is legal
  // Tokens that must follow one after the other, where there is only one way; a proposal.
  std::vector<Token> forced;

  bool has(Token t) const {
    const auto i = static_cast<size_t>(t);
    return t >= 0 && i / 32 < bits.size() && (bits[i / 32] >> (i % 32) & 1) != 0;
  }
};

// Thread-safe. One per choice.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // What may follow `answer`. Null: `answer` itself is illegal, as rejected drafts can be.
  virtual std::shared_ptr<const LegalTokens> after(std::span<const Token> answer) = 0;
  // Has after(answer) computed on another thread, so that the next call for it does not wait as
  // long. Returns at once.
  virtual void prepare(std::vector<Token> answer) = 0;
  // after(answer) if that is known, or will be known within about a millisecond. nullopt: it takes
  // longer, and is being computed.
  virtual std::optional<std::shared_ptr<const LegalTokens>> soon(std::span<const Token> answer) {
    return after(answer);
  }
  // Runs `job` on a thread where after() may take long.
  virtual void post(absl::AnyInvocable<void()> job) { job(); }
  // after(answer) if that is known already, else null. Returns at once.
  virtual std::shared_ptr<const LegalTokens> known(std::span<const Token> answer) = 0;
  // The number of leading `drafts` that may follow `answer`; all if that is not known at once. A
  // hint for drafting.
  virtual size_t legal_drafts(std::span<const Token> answer, std::span<const Token> drafts) = 0;
  // End-of-text tokens; at least one.
  virtual std::span<const Token> ends() const = 0;
};

}  // namespace tandem
