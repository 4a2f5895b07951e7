// A request as the loop runs it: everything about text is resolved already.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/async/task.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/outcome.h"
#include "engine/decode/gen.h"
#include "engine/pass/cast.h"
#include "engine/pass/pass.h"
#include "engine/sched/metrics.h"

namespace tandem {

struct PassTrace;  // engine/sched/pass_trace.h

// Matches stop strings on the text of one sequence.
class TextStops {
 public:
  virtual ~TextStops() = default;
  virtual std::unique_ptr<TextStops> clone() const = 0;  // with its state
  // Index of the stop string that `token` completes, or -1.
  virtual int push(Token token) = 0;
  // True: pushing `tokens` would complete one.
  virtual bool would_stop(std::span<const Token> tokens) const = 0;
};

// A unique_ptr whose copy owns a clone.
template <class T>
class Cloned : public std::unique_ptr<T> {
 public:
  using std::unique_ptr<T>::unique_ptr;
  using std::unique_ptr<T>::operator=;
  Cloned() = default;
  Cloned(const Cloned& o) : std::unique_ptr<T>(o ? o->clone() : nullptr) {}
  Cloned(Cloned&&) noexcept = default;
  Cloned& operator=(const Cloned& o) { return *this = Cloned(o); }
  Cloned& operator=(Cloned&&) noexcept = default;
  ~Cloned() = default;
};

struct StopRules {
  std::vector<Token> eos;          // end the request and are not part of the text
  std::vector<Token> stop_tokens;  // likewise
  bool include_end = false;        // the end token is emitted, as the last one
  int max_new_tokens = 0;          // >= 1 for methods that emit
  Cloned<TextStops> text;          // may be null
};

struct SequenceEnd {
  absl::Status status;  // not OK: only `stats` is meaningful
  FinishReason reason = FinishReason::kMaxTokens;
  int stop_index = -1;  // into the stop strings, for kStopSequence
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  MethodStats stats;
  // Of a constrained sequence without error, to tell whether its answer is complete.
  std::shared_ptr<TokenConstraint> constraint;
  std::vector<Token> answer;
  std::shared_ptr<const PassTrace> trace;  // if the spec asks for it
};

// Receives the tokens and the end of one sequence, on the loop thread. Must not block. on_end is
// the last call.
class SequenceListener {
 public:
  virtual ~SequenceListener() = default;
  virtual void on_admitted() = 0;
  virtual void on_tokens(std::span<Emitted> tokens) = 0;  // may move from them
  virtual void on_end(const SequenceEnd& end) = 0;
};

// One choice of a request. A copy for another choice needs a new id, warp.choice and listener.
struct SequenceSpec {
  // Members used in each round come first.
  RequestId id = 0;
  Warp warp;
  StopRules stops;
  std::shared_ptr<SequenceListener> listener;
  int top_logprobs = 0;
  bool logprobs = false;
  bool raw_logprobs = false;  // before processors
  bool trace = false;         // SequenceEnd::trace
  // Shares prefixes with other sequences of the same `salt`.
  bool prefix_cache = true;

  std::vector<Token> prompt;          // at least one
  std::vector<Token> encoder_tokens;  // that encoders run, in one pass; empty: there is no encoder
  // LLM-to-SLM: the text as the conditioning role runs it, where it does not run the same tokens as
  // the role that it conditions. Always set where an encoder conditions. Empty: the same tokens.
  std::vector<Token> conditioning_tokens;
  // By conditioned row: the conditioning row that is its input. Empty: the row of the same index.
  std::vector<int> alignment;
  // Length of the request's text: that of the encoder's input, if any; the prompt is then a start
  // token.
  int64_t prompt_tokens() const {
    return static_cast<int64_t>(encoder_tokens.empty() ? prompt.size() : encoder_tokens.size());
  }

  // Creates the method's coroutine. It is not a coroutine; parameters are bound by value.
  std::function<Task<void>(Gen)> method;
  std::shared_ptr<const Cast> cast = no_cast();
  bool placed = false;  // the cast names replicas; else admission chooses them (placement.h)
  const std::vector<CastRole>& roles() const { return cast->roles; }
  // The tokens of the request that a role runs; `role` is an index into roles().
  const std::vector<Token>& request_tokens(size_t role) const {
    if (!conditioning_tokens.empty() && cast->conditions(role)) return conditioning_tokens;
    return roles()[role].role == Role::kEncoder ? encoder_tokens : prompt;
  }
  // True: the role runs request_tokens() and nothing else, once for the request. False: it runs the
  // sequence, prompt and answer.
  bool runs_fixed_tokens(size_t role) const {
    return roles()[role].role == Role::kEncoder ||
           (!conditioning_tokens.empty() && cast->conditions(role));
  }
  // The number of caches of full length that the method may hold in each role (beams).
  int width = 1;
  // The most rows that a round may need beyond prompt and max_new_tokens: its longest draft.
  int extra_rows = 0;
  int priority = 0;  // larger first
  std::string client;
  std::string salt;  // see prefix_cache
  // Of requests of the deployment, by salt. Gets the text of this one. May be null.
  std::shared_ptr<TextHistory> history;
  TimePoint submitted{};                    // arrival of the client's request
  TimePoint deadline = kNever;              // DEADLINE_EXCEEDED
  TimePoint time_limit = kNever;            // TIME_LIMIT, with its tokens so far
  Series* series = nullptr;                 // may be null
  AdapterSeries* adapter_series = nullptr;  // likewise
  // Kept until no device works on the sequence: what its LoRA adapter needs.
  std::shared_ptr<const void> lease;

 private:
  static const std::shared_ptr<const Cast>& no_cast() {
    static const auto* const kNone = new std::shared_ptr<const Cast>(make_cast({}));
    return *kNone;
  }
};

}  // namespace tandem
