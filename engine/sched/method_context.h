// A method's view of its sequence (decode/gen.h), implemented on the sequence's parts.
//
// Loop thread only.
#pragma once

#include <coroutine>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/gen.h"
#include "engine/sched/loop_services.h"
#include "engine/sched/sequence_parts.h"

namespace tandem {

class MethodContext final : public Sequence {
 public:
  // All outlive it.
  MethodContext(SequenceRun* run, SequenceParts* parts, LoopServices* loop)
      : run_(run), parts_(parts), loop_(loop) {}

  // The coroutine of the round that waits for pages; null: none waits.
  std::coroutine_handle<> take_waiter() { return std::exchange(waiter_, nullptr); }

  // Sequence:
  const std::vector<Token>& tokens() const override { return parts_->output.tokens(); }
  Stage stage(Role role, int i) const override { return parts_->caches.stage(role, i); }
  int rows(Stage stage) const override { return parts_->caches.find(stage.cache)->rows(stage.to); }
  int cached(Stage stage) const override;
  const Warp& warp() const override { return parts_->spec.warp; }
  int top_logprobs() const override { return parts_->spec.top_logprobs; }
  bool wants_logprobs() const override { return parts_->spec.logprobs; }
  bool raw_logprobs() const override { return parts_->spec.raw_logprobs; }
  MethodStats& stats() override { return parts_->accounts.stats(); }
  TimePoint now() const override { return loop_->now(); }
  ModelLoad load(Stage stage) const override {
    return loop_->load(parts_->caches.find(stage.cache)->model());
  }
  TenantTexts earlier_texts() const override {
    return {parts_->spec.history.get(), &parts_->spec.salt};
  }
  bool reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) override;
  Pass begin_pass(Stage stage, int end) override;
  Flight* submit(Pass&& pass) override { return submit(std::move(pass), Purpose::kRequested); }
  void retain(CacheId cache, std::span<const Row> path) override {
    parts_->caches.find_idle(cache)->retain(path);
  }
  void truncate(CacheId cache, int at_most) override {
    // A pass without a waiter, as a prompt's, may still run if no row of it is dropped.
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
  void count_verification(int64_t drafted, int64_t accepted) override;

 private:
  using Purpose = SequencePasses::Purpose;

  // Recomputes rows that the round may not leave between two layers (Need::frontier). As part of a
  // prompt pass they could not be divided.
  void recompute_rows(Stage stage);
  Flight* submit(Pass&& pass, Purpose purpose);

  SequenceRun* const run_;
  SequenceParts* const parts_;
  LoopServices* const loop_;
  std::coroutine_handle<> waiter_;
};

}  // namespace tandem
