// One waiting or admitted sequence, as the loop manages it: its state, coroutine and resources. Its
// method uses the same parts through MethodContext.
//
// Loop thread only.
#pragma once

#include <atomic>
#include <coroutine>
#include <memory>
#include <span>
#include <vector>

#include "engine/async/gate.h"
#include "engine/async/task.h"
#include "engine/sched/fairness.h"
#include "engine/sched/flight.h"
#include "engine/sched/loop_services.h"
#include "engine/sched/method_context.h"
#include "engine/sched/sequence_state.h"
#include "engine/sched/spec.h"

namespace tandem {

class SequenceRun final {
 public:
  using State = SequenceState;
  using enum SequenceState;

  SequenceRun(SequenceSpec spec, uint64_t order, LoopServices* loop);
  ~SequenceRun();
  SequenceRun(const SequenceRun&) = delete;
  SequenceRun& operator=(const SequenceRun&) = delete;

  const SequenceSpec& spec() const { return parts_.spec; }
  RequestId id() const { return parts_.spec.id; }
  uint64_t order() const { return order_; }  // smaller: older

  // Assigns a replica to each role. REQUIRES: not started.
  void place(std::span<const ModelId> models);

  // Sets its request, by the id of its first choice, and its client's account.
  void belongs_to(RequestId request, Account* account) { request_ = request, account_ = account; }
  RequestId request() const { return request_; }
  Account* account() const { return account_; }
  // True: other choices wait for its prompt rows.
  bool leads() const { return leads_; }
  void lead(bool others_follow) { leads_ = others_follow; }

  State state() const { return state_.get(); }
  void enter(State next) { state_.enter(next); }  // REQUIRES: may_follow(state(), next)

  // Lifetime. start() creates caches and coroutine; the caller resumes it. drop_frame() destroys
  // the coroutine, release() releases all pages. REQUIRES for release: no pass is on a device.
  std::coroutine_handle<> start();
  bool method_done() const { return task_.valid() && task_.done(); }
  void drop_frame() { task_.reset(); }
  void release();
  // Shares the prompt rows of another choice of its request, except the last one. It runs that row
  // and all rows that the leader lacks. REQUIRES: started, not resumed yet; the same prompt, cast
  // and salt. The leader waits at a round without passes under way, or submits no more passes.
  void adopt(const SequenceRun& leader) { parts_.caches.adopt(leader.parts_.caches); }

  // Its round (reservation.h), and the coroutine that waits for it.
  void adopt() { parts_.reservation.adopt(parts_.output.tokens()); }
  bool can_grant(std::vector<const PagePool*>* lacking = nullptr) const {
    return parts_.reservation.can_grant(lacking);
  }
  void grant();
  int64_t rounds() const { return rounds_; }  // granted
  std::coroutine_handle<> take_waiter() { return context_.take_waiter(); }
  // Prefetches what resuming `waiter`, this sequence's coroutine, touches. Its own members must be
  // in the processor's cache already.
  void prefetch_round(std::coroutine_handle<> waiter) const;
  int64_t first_pages(size_t role, const ModelPools& pools) const {
    return parts_.reservation.first_pages(role, pools, parts_.output.tokens());
  }
  int64_t known_rows(size_t role, const ModelPools& pools) const {
    return parts_.reservation.known_rows(role, pools, parts_.output.tokens());
  }
  // Empties its caches; the next passes recompute them. Full pages stay in the prefix cache until
  // they are needed.
  void preempt();

  const CacheSet& caches() const { return parts_.caches; }
  bool uses(ModelId model) const;
  bool shares_pools_with(const SequenceRun& other) const;

  // Passes. Those on a device hold the gate.
  Gate& gate() { return gate_; }
  std::atomic<bool>* late();                                 // Work::late
  int flights() const { return parts_.passes.under_way(); }  // submitted and not done
  void flight_done(PassFlight& flight) { parts_.passes.done(flight); }
  template <class F>
  void forget_values(F f) {
    parts_.passes.forget_values(f);
    for (const auto& cache : parts_.caches.all()) cache->release_values();
  }

  SequenceAccounts& accounts() { return parts_.accounts; }
  const SequenceAccounts& accounts() const { return parts_.accounts; }
  PassRecorder* recorder() const { return parts_.recorder.get(); }  // null: no trace is requested

  const std::vector<Token>& tokens() const { return parts_.output.tokens(); }

  // The end, by its method or its client.
  bool ended() const { return parts_.output.ended(); }
  void end_with(FinishReason reason) { parts_.output.end_with(reason); }
  // FAILED_PRECONDITION or RESOURCE_EXHAUSTED if it has ended because its constraint left no token
  // (sampling::apply_constraint()).
  absl::Status constraint_status() const;
  SequenceEnd make_end(absl::Status status) const;

 private:
  void publish();

  const uint64_t order_;
  LoopServices* const loop_;
  RequestId request_ = 0;
  Account* account_ = nullptr;
  bool leads_ = false;
  int64_t rounds_ = 0;
  CheckedState state_;
  Gate gate_;
  std::atomic<bool> late_ = false;
  SequenceParts parts_;
  MethodContext context_;
  Task<void> task_;  // destroyed before the members it uses
};

}  // namespace tandem
