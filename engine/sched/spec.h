// What the loop must know of a request: everything text-level is resolved already.
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
#include "engine/pass/pass.h"
#include "engine/sched/metrics.h"

namespace tandem {

// Stop strings are matched on text; the loop only asks. One per sequence.
class TextStops {
 public:
  virtual ~TextStops() = default;
  virtual std::unique_ptr<TextStops> clone() const = 0;  // as it is now
  // Index of the stop string that `token` completes, or -1.
  virtual int push(Token token) = 0;
  // Would pushing `tokens` complete one?
  virtual bool would_stop(std::span<const Token> tokens) const = 0;
};

// Owns a T that is copied with it.
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
  bool include_end = false;        // the one that ended it is emitted, as the last token
  int max_new_tokens = 0;          // >= 1 for methods that emit
  Cloned<TextStops> text;          // may be null
};

struct SequenceEnd {
  absl::Status status;  // not ok: the rest means nothing but `stats`
  FinishReason reason = FinishReason::kMaxTokens;
  int stop_index = -1;  // into the stop strings, for kStopSequence
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  MethodStats stats;
};

// Hears about one sequence, on the loop thread; must not block. on_end is the last call.
class SequenceListener {
 public:
  virtual ~SequenceListener() = default;
  virtual void on_admitted() = 0;
  virtual void on_tokens(std::span<Emitted> tokens) = 0;  // which it may move from
  virtual void on_end(const SequenceEnd& end) = 0;
};

// A model in a role of this sequence: gets a cache of its own unless it shares one.
struct RoleModel {
  Role role = Role::kLarge;
  ModelId model;  // one with replicas stands for all of them, until the sequence is placed
  int to = 0;     // layers; 0: all
  // Of a role below the top: how many of its rows lie between two layers at the same time, at most.
  // 0: all may.
  int frontier_rows = 0;
  // Which of the roles runs the source, whose rows this one reads through cross-attention: an index
  // into SequenceSpec::roles; -1: none.
  int memory = -1;
  AdapterId adapter;  // of its passes; invalid: none
  int hidden = 0;     // rows that a round leaves on it at most, see Need::hidden
  AdapterId masks;  // of mask rows, which leave nothing in the cache; only where `adapter` is none
  // The prompt's rows of its cache, of an encoder the source's, are fed with the hidden rows that
  // another role leaves, through `adapter`. Passes of that role leave them, and
  // where they are not there, as after an eviction, Gen::catch_up has them made.
  struct Fed {
    int role = -1;         // an index into SequenceSpec::roles; -1: all rows are fed with tokens
    int at = 0;            // hidden rows after so many layers; 0: all that the role runs
    bool replace = false;  // in place of the tokens' embeddings, or added to them
    bool foreign = false;  // the prompt's ids mean nothing to this role's model
    friend bool operator==(const Fed&, const Fed&) = default;
  } fed;
  bool prompt_only = false;  // its cache has no rows but the prompt's
  bool sees_all = false;  // an encoder that is no other role's memory: it reads for a small model

  // Pages that its rows between two of the model's layers take at most, of `rows` in all.
  int64_t frontier_pages(int layers, int page_rows, int64_t rows) const {
    if (to <= 0 || to >= layers) return 0;
    const int64_t all = (rows + page_rows - 1) / page_rows;
    if (frontier_rows == 0) return all;
    const int64_t run = (frontier_rows - 2 + page_rows) / page_rows + 1;  // wherever it begins
    return std::min(all, run);
  }
};

// One choice of a request. It can be copied for further choices; then id, warp.choice and listener
// are to be set anew.
struct SequenceSpec {
  // What each round looks at stands first, close together.
  RequestId id = 0;
  Warp warp;
  StopRules stops;
  std::shared_ptr<SequenceListener> listener;
  int top_logprobs = 0;
  bool logprobs = false;
  bool raw_logprobs = false;  // before processors
  // Rows that other sequences have run may be taken over, and others may take this one's, if their
  // `salt` is the same.
  bool prefix_cache = true;

  std::vector<Token> prompt;  // at least one
  std::vector<Token> source;  // what encoders run, all rows at once; empty: there are none
  // What the role runs whose hidden rows another is fed with, where it does not run what that does:
  // the text in its own tokens. Of a role that sees all its rows, always. Empty: the same.
  std::vector<Token> read;
  // By row that is fed: which of `read`'s it is fed with. Empty: row i with row i.
  std::vector<int> beside;
  // Of what the client sent: the source, where there is one, whose prompt is a start token.
  int64_t prompt_tokens() const {
    return static_cast<int64_t>(source.empty() ? prompt.size() : source.size());
  }
  // Is another role fed with its hidden rows?
  bool feeds(const RoleModel& role) const {
    const auto index = static_cast<int>(&role - roles.data());
    return std::ranges::any_of(roles, [index](const RoleModel& o) { return o.fed.role == index; });
  }
  // Does it run other tokens than the sequence's, once for all?
  bool runs_apart(const RoleModel& role) const {
    return role.role == Role::kEncoder || (!read.empty() && feeds(role));
  }
  static bool encodes(const RoleModel& role) {
    return role.role == Role::kEncoder || role.sees_all;
  }
  // What a role runs of the request. REQUIRES: it is one of `roles`.
  const std::vector<Token>& request_of(const RoleModel& role) const {
    if (!read.empty() && feeds(role)) return read;
    return role.role == Role::kEncoder ? source : prompt;
  }
  // Makes the method's coroutine. Not itself a coroutine; parameters are bound by value.
  std::function<Task<void>(Gen)> method;
  std::vector<RoleModel> roles;
  bool placed = false;  // roles name the very replicas; else admission chooses (placement.h)
  // Caches of the same length that the method may hold in each role (beam search).
  int width = 1;
  // Rows that a round of the method may want beyond prompt and max_new_tokens: its longest guess.
  int extra_rows = 0;
  int priority = 0;  // larger first
  std::string client;
  std::string salt;               // see prefix_cache
  TimePoint submitted{};          // when the client's request came in
  TimePoint deadline = kNever;    // DEADLINE_EXCEEDED
  TimePoint time_limit = kNever;  // TIME_LIMIT, with what is final by then
  Series* series = nullptr;       // may be null
};

}  // namespace tandem
