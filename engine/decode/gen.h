// What a decoding method sees: Gen, a value handle on one sequence.
//
// A method is a coroutine that reads like its paper. It owns no tensors and no KV memory: it
// reserves (round), submits passes, awaits their readouts, and emits final tokens. Awaits never
// return an error: when a request fails, is cancelled or runs out of time, its frame is destroyed
// where it is.
//
//   Task<void> autoregressive(Gen g) {
//     const Stage L = g.stage(Role::kLarge);
//     for (;;) {
//       co_await g.round({{L, g.missing(L)}});
//       Pass p = g.catch_up(L);
//       p.reading(g.draw(last_rows(1, p.add.size())));
//       Readout r = co_await g.submit(std::move(p));
//       if (g.emit(g.emitted(r.row[0]))) co_return;
//     }
//   }
//
// Loop thread only.
#pragma once

#include <coroutine>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/async/task.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/outcome.h"
#include "engine/pass/cast.h"
#include "engine/pass/pass.h"

namespace tandem {

const char* role_name(Role r);  // "large", "small", "encoder", "worker"

// A final token on its way out.
struct Emitted {
  Token token = -1;
  Provenance provenance;
  float logprob = kUnset;
  std::vector<Ranked> top;
  bool end = false;  // the loop's: ends the request, and is not part of its text
};

// Room for `rows` rows beyond those that have come to stage.to.
struct Need {
  Stage stage;
  int rows = 0;
  // Rows of an empty cache may be there after the round without a pass of this sequence: another
  // one has had the same tokens (the prefix cache), or another choice of the request has run the
  // prompt. Rows from here on are left to this sequence, because it reads them or feeds them
  // something else than seq(). The row of seq()'s last token always is.
  int reads_from = std::numeric_limits<int>::max();
  // Of a stage below the top: so many of its rows, the last ones, lie between two layers at the
  // same time. The method brings those before them all the way (Gen::catch_up to a row).
  int frontier = std::numeric_limits<int>::max();
};

using Needs = absl::InlinedVector<Need, 2>;

// A submitted pass. The sequence's, which uses its memory again when the pass is done and no Ticket
// names it any more.
struct Flight {
  TicketId id = 0;
  bool done = false;
  bool held = true;    // by its Ticket
  double seconds = 0;  // that its batches have taken
  Readout readout;
  std::coroutine_handle<> waiter;

  virtual void detach() = 0;  // by its Ticket

 protected:
  ~Flight() = default;
};

// co_await gives the Readout, once. Moves, and is not copied.
class Ticket {
 public:
  explicit Ticket(Flight* flight) : flight_(flight) {}
  Ticket(Ticket&& o) noexcept : flight_(std::exchange(o.flight_, nullptr)) {}
  Ticket& operator=(Ticket&& o) noexcept {
    std::swap(flight_, o.flight_);
    return *this;
  }
  ~Ticket() {
    if (flight_) flight_->detach();
  }

  TicketId id() const { return flight_->id; }
  // For inputs of later passes; the pass must have been submitted with Pass::share.
  In chosen(int out, int rank = kDrawn) const {
    In in;
    in.kind = In::kChosen;
    in.id = rank;
    in.ref.ticket = id();
    in.ref.out = out;
    return in;
  }
  DistRef distributions() const {
    DistRef kept;
    kept.ticket = id();
    return kept;
  }

  // REQUIRES: it is done. How long its device took.
  double seconds() const { return flight_->seconds; }

  bool await_ready() const { return flight_->done; }
  void await_suspend(std::coroutine_handle<> h) { flight_->waiter = h; }
  Readout await_resume() { return std::move(flight_->readout); }

 private:
  Flight* flight_;
};

// What the scheduler does for a method. One per sequence.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual const std::vector<Token>& tokens() const = 0;
  virtual Stage stage(Role role, int i) const = 0;
  virtual int rows(Stage stage) const = 0;
  virtual const Warp& warp() const = 0;
  virtual int top_logprobs() const = 0;
  virtual bool wants_logprobs() const = 0;
  virtual bool raw_logprobs() const = 0;
  virtual MethodStats& stats() = 0;
  virtual TimePoint now() const = 0;
  // True: granted at once. False: `waiter` goes on when it is.
  virtual bool reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) = 0;
  // A pass to `stage` that begins with the next rows of the prompt, up to row `end`, that are
  // conditioned on another role's hidden rows; empty where there are none. Submits earlier passes
  // that it depends on: the conditioning role's, and recomputation of preempted rows that may not
  // stay between two layers (Need::frontier). The pass reuses the memory of a completed one.
  virtual Pass begin_pass(Stage stage, int end) = 0;
  virtual Flight* submit(Pass&& pass) = 0;
  virtual void retain(CacheId cache, std::span<const Row> path) = 0;
  virtual void truncate(CacheId cache, int at_most) = 0;
  virtual CacheId fork(CacheId cache) = 0;
  virtual void drop(CacheId cache) = 0;
  virtual int64_t copy(CacheId from, int begin, int end, CacheId to) = 0;
  virtual bool ends(std::span<const Token> tentative) const = 0;
  virtual bool is_end(Token token) const = 0;
  virtual int end_tokens() const = 0;
  virtual int remaining() const = 0;
  virtual bool emit(std::span<Emitted> tokens) = 0;
};

class Gen {
 public:
  explicit Gen(Sequence* sequence) : s_(sequence) {}

  // Prompt and emitted tokens. The reference is good until the next emit().
  const std::vector<Token>& seq() const { return s_->tokens(); }
  Stage stage(Role role, int i = 0) const { return s_->stage(role, i); }
  const Warp& warp() const { return s_->warp(); }
  MethodStats& stats() { return s_->stats(); }             // what only the method can count
  TimePoint now() const { return s_->now(); }              // to measure: never to choose a token by
  int rows(Stage stage) const { return s_->rows(stage); }  // that have come to stage.to
  // Rows of seq() that have not come to stage.to.
  int missing(Stage stage) const { return static_cast<int>(s_->tokens().size()) - s_->rows(stage); }

  // co_await: reserves pages for all needs, all or none. The only place where a request waits for
  // memory or is evicted; so no value read from a device is kept over it, and caches may be shorter
  // (even empty) after it, or an empty one longer (Need::reads_from): catch_up() adds whatever is
  // missing. Rows of seq() that are in a cache now are final: until the next round nothing
  // truncates them but the row of its last token.
  auto round(Needs needs) {
    struct Awaiter {
      Sequence* s;
      Needs needs;
      bool await_ready() const { return false; }
      bool await_suspend(std::coroutine_handle<> h) { return !s->reserve(needs, h); }
      void await_resume() const {}
    };
    return Awaiter{s_, std::move(needs)};
  }

  // A pass that adds what stage.cache lacks of seq() and `tentative`, as a chain. After preemption,
  // rows that Need::frontier has no capacity for run through all layers first, in a pass of their
  // own; the stage's memory is recomputed when the pass is submitted. Prompt rows of a conditioned
  // role (ConditioningEdge) take hidden rows as inputs.
  // REQUIRES: the stage is among the round's needs, if it has Need::frontier or is conditioned.
  Pass catch_up(Stage stage, std::span<const Token> tentative = {}) const;
  // The same up to row `upto` of seq().
  Pass catch_up(Stage stage, int upto) const;
  // Reads a token for each of `rows` under the request's own processors, with the log-probabilities
  // that the request asked for.
  Read draw(RowList rows) const;
  // The token of `out`, with what the request wants to know about it.
  Emitted emitted(const Out& out, Provenance provenance = {}) const;

  // Several passes may be under way; those on one cache run in order.
  Ticket submit(Pass&& pass) { return Ticket(s_->submit(std::move(pass))); }

  // Of the rows of the last pass on `cache`, those in `path` stay. Unasked, a chain stays whole and
  // a tree only up to its first branch. REQUIRES, as for fork, copy, and truncate where it has more
  // rows: no pass on the cache is under way.
  void retain(CacheId cache, std::span<const Row> path) { s_->retain(cache, path); }
  void truncate(CacheId cache, int at_most) { s_->truncate(cache, at_most); }
  CacheId fork(CacheId cache) { return s_->fork(cache); }
  // Ends a forked cache; its id means nothing from here on.
  void drop(CacheId cache) { s_->drop(cache); }
  // Rows [begin, end) with their frontier, between caches of different devices or layer ranges.
  // Returns the bytes that go from one device or device queue to another.
  int64_t copy(CacheId from, int begin, int end, CacheId to) {
    return s_->copy(from, begin, end, to);
  }

  // Would emitting `tentative` end the request?
  bool ends(std::span<const Token> tentative) const { return s_->ends(tentative); }
  // Is `token` one that ends a request wherever it comes? How many such tokens are there?
  bool is_end(Token token) const { return s_->is_end(token); }
  int end_tokens() const { return s_->end_tokens(); }
  // Tokens until max_new_tokens is reached; 1 or more until emit() has said true.
  int remaining() const { return s_->remaining(); }
  // Final tokens; cut where autoregressive decoding would stop. True: the request has ended.
  bool emit(std::vector<Emitted> tokens) { return s_->emit(tokens); }
  bool emit(Emitted token) { return s_->emit({&token, 1}); }

 private:
  Sequence* s_;
};

}  // namespace tandem
