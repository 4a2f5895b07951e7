// Gen: the interface of decoding methods, a handle on one sequence.
//
// A method is a coroutine that reads like its paper. It owns no tensors and no KV memory: it
// reserves pages (round), submits passes, awaits their readouts, and emits final tokens. Awaits
// never return errors: if a request fails, is cancelled or exceeds its time, its frame is
// destroyed.
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
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/async/task.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/outcome.h"
#include "engine/decode/pacing/batch_time.h"
#include "engine/pass/cast.h"
#include "engine/pass/pass.h"

namespace tandem {

const char* role_name(Role r);  // "large", "small", "encoder", "worker"

// A final token.
struct Emitted {
  Token token = -1;
  Provenance provenance;
  float logprob = kUnset;
  std::vector<Ranked> top;
  bool end = false;  // set by the loop: ends the request, not part of its text
  int pass = 0;      // likewise: the number of the pass that made it final, from 1
};

// Capacity for `rows` rows beyond those that have done stage.to layers.
struct Need {
  Stage stage;
  int rows = 0;
  // An empty cache may receive rows without a pass of this sequence: from the prefix cache, or from
  // another choice that has run the prompt. Rows from `reads_from` on are left to this sequence,
  // because it reads them or their inputs are not seq(). So is the row of seq()'s last token.
  int reads_from = std::numeric_limits<int>::max();
  // Of a stage below the top: at most this many of its rows, the last ones, are between two layers.
  // The method runs earlier rows through all layers (Gen::catch_up to a row).
  int frontier = std::numeric_limits<int>::max();
};

using Needs = absl::InlinedVector<Need, 2>;

// A submitted pass. The sequence owns it, and reuses it when it is done and has no Ticket.
struct Flight {
  TicketId id = 0;
  bool done = false;
  bool held = true;    // by its Ticket
  double seconds = 0;  // the time of its batches
  int works = 1;       // passes in the last of them, this one included
  Readout readout;
  std::coroutine_handle<> waiter;

  virtual void detach() = 0;  // by its Ticket

 protected:
  ~Flight() = default;
};

// A handle on a submitted pass. co_await returns the Readout, once. Move-only.
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
  // An input of later passes. REQUIRES: the pass was submitted with Pass::share.
  In chosen(int out, int rank = kDrawn) const {
    In in;
    in.kind = In::kChosen;
    in.id = rank;
    in.ref.ticket = id();
    in.ref.out = out;
    return in;
  }

  // The time that its device took. REQUIRES: it is done.
  double seconds() const { return flight_->seconds; }
  // Passes that shared its batch, itself included; of its last batch. REQUIRES: it is done.
  int works() const { return flight_->works; }

  bool await_ready() const { return flight_->done; }
  void await_suspend(std::coroutine_handle<> h) { flight_->waiter = h; }
  Readout await_resume() { return std::move(flight_->readout); }

 private:
  Flight* flight_;
};

class TextHistory;  // engine/decode/text_history.h

// The texts of earlier requests of a tenant.
struct TenantTexts {
  TextHistory* history = nullptr;  // null: there are none
  const std::string* tenant = nullptr;
};

// The scheduler's implementation of Gen. One per sequence.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual const std::vector<Token>& tokens() const = 0;
  virtual Stage stage(Role role, int i) const = 0;
  virtual int rows(Stage stage) const = 0;
  virtual int cached(Stage) const { return 0; }
  virtual const Warp& warp() const = 0;
  virtual int top_logprobs() const = 0;
  virtual bool wants_logprobs() const = 0;
  virtual bool raw_logprobs() const = 0;
  virtual MethodStats& stats() = 0;
  virtual TimePoint now() const = 0;
  virtual ModelLoad load(Stage stage) const = 0;
  virtual TenantTexts earlier_texts() const { return {}; }
  // True: granted at once. False: `waiter` is resumed when it is granted.
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
  virtual void count_verification(int64_t drafted, int64_t accepted) {
    stats().count_verification(drafted, accepted);
  }
};

class Gen {
 public:
  explicit Gen(Sequence* sequence) : s_(sequence) {}

  // Prompt and emitted tokens. The reference is valid until the next emit().
  const std::vector<Token>& seq() const { return s_->tokens(); }
  Stage stage(Role role, int i = 0) const { return s_->stage(role, i); }
  const Warp& warp() const { return s_->warp(); }
  MethodStats& stats() { return s_->stats(); }                   // for the method's own figures
  TimePoint now() const { return s_->now(); }                    // never to choose a token by
  ModelLoad load(Stage stage) const { return s_->load(stage); }  // of its model; likewise
  // Of the request's deployment and tenant; likewise.
  TenantTexts earlier_texts() const { return s_->earlier_texts(); }
  int rows(Stage stage) const { return s_->rows(stage); }  // that have done stage.to layers
  // Rows of seq() from stage.first on that have not done stage.to layers.
  int missing(Stage stage) const {
    return static_cast<int>(s_->tokens().size()) - stage.first - s_->rows(stage);
  }

  // Leading rows of seq() in the prefix cache. An empty cache that needs rows gets them in the next
  // round. Each call looks up the pages of all tokens.
  int cached(Stage stage) const { return s_->cached(stage); }

  // co_await: reserves pages for all needs or none. Only here may a request wait for memory or be
  // preempted. Values left on a device do not survive it. Caches may be shorter after it, even
  // empty, or an empty one longer (Need::reads_from); catch_up() adds the missing rows. Rows of
  // seq() in a cache are final: until the next round only the row of the last token may be
  // truncated.
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

  // A pass that adds what stage.cache lacks of seq(), from stage.first on, and `tentative`, as a
  // chain. After preemption, rows that Need::frontier has no capacity for run through all layers
  // first, in a pass of their own; the stage's memory is recomputed when the pass is submitted.
  // Prompt rows of a conditioned role (ConditioningEdge) take hidden rows as inputs.
  // REQUIRES: the stage is among the round's needs, if it has Need::frontier or is conditioned.
  Pass catch_up(Stage stage, std::span<const Token> tentative = {}) const;
  // The same up to row `upto` of seq().
  Pass catch_up(Stage stage, int upto) const;
  // A read that draws a token at each of `rows` with the request's warp and requested
  // log-probabilities.
  Read draw(RowList rows) const;
  // At most `most` tokens that the request's constraint forces behind seq(), up to one that would
  // end the request. Drafts that need no model.
  std::vector<Token> forced(int most) const;
  // The number of leading `drafts` behind seq() that the constraint allows, as far as is known.
  size_t legal_drafts(std::span<const Token> drafts) const;
  // The token of `out`, with its requested log-probabilities.
  Emitted emitted(const Out& out, Provenance provenance = {}) const;

  // Several passes may be under way. Passes on one cache run in order.
  Ticket submit(Pass&& pass) { return Ticket(s_->submit(std::move(pass))); }

  // Retains the rows in `path` of the last pass on `cache`. Without this call, a chain stays whole
  // and a tree up to its first branch. REQUIRES: no pass on the cache is under way; likewise for
  // fork, copy, and truncate of existing rows.
  void retain(CacheId cache, std::span<const Row> path) { s_->retain(cache, path); }
  void truncate(CacheId cache, int at_most) { s_->truncate(cache, at_most); }
  // Drops the row of seq()'s last token, if the cache has it.
  void drop_last(Stage stage) {
    truncate(stage.cache, static_cast<int>(seq().size()) - 1 - stage.first);
  }
  CacheId fork(CacheId cache) { return s_->fork(cache); }
  // Destroys a forked cache.
  void drop(CacheId cache) { s_->drop(cache); }
  // Copies rows [begin, end) with their frontier between caches of different devices or depths.
  // Returns the bytes that move between devices.
  int64_t copy(CacheId from, int begin, int end, CacheId to) {
    return s_->copy(from, begin, end, to);
  }

  // True: emitting `tentative` would end the request.
  bool ends(std::span<const Token> tentative) const { return s_->ends(tentative); }
  // End tokens end a request wherever they occur: whether `token` is one, and their number.
  bool is_end(Token token) const { return s_->is_end(token); }
  int end_tokens() const { return s_->end_tokens(); }
  // Tokens until max_new_tokens is reached; at least 1 until emit() returns true.
  int remaining() const { return s_->remaining(); }
  // Emits final tokens, up to where autoregressive decoding would stop. True: the request has
  // ended.
  bool emit(std::vector<Emitted> tokens) { return s_->emit(tokens); }
  bool emit(Emitted token) { return s_->emit({&token, 1}); }
  // Counts a verification by the large model's last pass, which accepted `accepted` of `drafted`
  // tokens. No-op without drafts.
  void count_verification(int64_t drafted, int64_t accepted) {
    s_->count_verification(drafted, accepted);
  }

 private:
  Sequence* s_;
};

}  // namespace tandem
