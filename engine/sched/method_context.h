// What a method sees of its sequence (decode/gen.h), put together from the sequence's parts.
//
// Loop thread only.
#pragma once

#include <coroutine>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/gen.h"
#include "engine/sched/cache_set.h"
#include "engine/sched/reservation.h"
#include "engine/sched/run_host.h"
#include "engine/sched/sequence_accounts.h"
#include "engine/sched/sequence_output.h"
#include "engine/sched/sequence_passes.h"
#include "engine/sched/spec.h"

namespace tandem {

// The parts of a sequence that its method works on.
struct SequenceParts {
  SequenceParts(SequenceSpec&& wanted, SequenceRun* run, RunHost* host)
      : spec(std::move(wanted)),
        output(&spec),
        caches(&spec, host),
        reservation(&caches),
        passes(run, spec.id, spec.priority),
        accounts(spec.submitted, spec.series) {}
  SequenceParts(const SequenceParts&) = delete;
  SequenceParts& operator=(const SequenceParts&) = delete;

  SequenceSpec spec;
  SequenceOutput output;
  CacheSet caches;
  Reservation reservation;
  SequencePasses passes;
  SequenceAccounts accounts;
};

class MethodContext final : public Sequence {
 public:
  // All outlive it.
  MethodContext(SequenceRun* run, SequenceParts* parts, RunHost* host)
      : run_(run), parts_(parts), host_(host) {}

  // Of the round that waits for its pages; null: none does.
  std::coroutine_handle<> take_waiter() { return std::exchange(waiter_, nullptr); }

  // Sequence:
  const std::vector<Token>& tokens() const override { return parts_->output.tokens(); }
  Stage stage(Role role, int i) const override { return parts_->caches.stage(role, i); }
  int rows(Stage stage) const override { return parts_->caches.find(stage.cache)->rows(stage.to); }
  const Warp& warp() const override { return parts_->spec.warp; }
  int top_logprobs() const override { return parts_->spec.top_logprobs; }
  bool wants_logprobs() const override { return parts_->spec.logprobs; }
  bool raw_logprobs() const override { return parts_->spec.raw_logprobs; }
  MethodStats& stats() override { return parts_->accounts.stats(); }
  TimePoint now() const override { return host_->now(); }
  bool reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) override;
  Pass blank_pass() override { return parts_->passes.blank(); }
  void refill(Stage stage) override;
  FedRows feed(Stage stage) override;
  Flight* submit(Pass&& pass) override;
  void keep(CacheId cache, std::span<const Row> path) override {
    parts_->caches.find_idle(cache)->keep(path);
  }
  void truncate(CacheId cache, int at_most) override {
    // A pass that nobody waits for, as a prompt's, may go on where nothing of it goes.
    if (parts_->caches.find(cache)->rows() <= at_most && !parts_->caches.find(cache)->idle())
      return;
    parts_->caches.find_idle(cache)->truncate(at_most);
  }
  CacheId fork(CacheId cache) override { return parts_->caches.fork(cache); }
  void drop(CacheId cache) override { parts_->caches.drop(cache); }
  int64_t copy(CacheId from, int begin, int end, CacheId to) override;
  bool ends(std::span<const Token> tentative) const override {
    return parts_->output.ends(tentative);
  }
  bool is_end(Token token) const override { return parts_->output.is_end(token); }
  int end_tokens() const override { return parts_->output.end_tokens(); }
  int remaining() const override { return parts_->output.remaining(); }
  bool emit(std::span<Emitted> tokens) override;

 private:
  void submit_refill(Pass&& pass);
  // What the passes of `cache` read through cross-attention is there from here on.
  void bring_memory(CacheId cache);
  // All that a cache holds that runs other tokens than the sequence's (CacheSet::apart).
  Pass pass_apart(CacheId cache, const std::vector<Token>& tokens);
  Flight* submit_leaving(Pass&& pass, SequencePasses::Why why);
  // The hidden rows that passes of this round have left for caches that are fed with them.
  struct Left {
    CacheId source;
    TicketId ticket = 0;
    int out = 0;
    int first = 0, end = 0;
  };

  SequenceRun* const run_;
  SequenceParts* const parts_;
  RunHost* const host_;
  std::coroutine_handle<> waiter_;
  std::vector<Left> left_;
};

}  // namespace tandem
