#include "engine/sched/method_context.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

bool MethodContext::reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) {
  parts_->reservation.begin_round(needs, tokens());
  waiter_ = waiter;
  if (!loop_->request_pages(run_)) return false;
  waiter_ = nullptr;
  return true;
}

int MethodContext::cached(Stage stage) const {
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const size_t role = parts_->caches.first_role_of(cache);
  return static_cast<int>(parts_->reservation.known_rows(role, *cache.pools(), tokens()));
}

Pass MethodContext::begin_pass(Stage stage, int end) {
  recompute_rows(stage);
  if (parts_->conditioning) return parts_->conditioning->begin_pass(stage, end);
  Pass pass = parts_->passes.blank();
  pass.stage = stage;
  return pass;
}

void MethodContext::recompute_rows(Stage stage) {
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const int layers = cache.pools()->layers;
  if (stage.to >= layers) return;
  const int have = cache.rows();
  const int end = std::min(parts_->reservation.frontier_begin(stage.cache),
                           static_cast<int>(tokens().size()) - 1);
  if (have >= end) return;
  Pass pass = parts_->passes.blank();
  pass.stage = {stage.cache, layers};
  for (int i = have; i < end; ++i) pass.add.chain(token_in(tokens()[static_cast<size_t>(i)]));
  submit(std::move(pass), Purpose::kRecompute)->detach();
}

Flight* MethodContext::submit(Pass&& pass, Purpose purpose) {
  if (parts_->conditioning) return parts_->conditioning->submit(std::move(pass), purpose);
  return parts_->passes.submit(std::move(pass), parts_->caches, loop_, purpose);
}

int64_t MethodContext::copy(CacheId from, int begin, int end, CacheId to) {
  SequenceCache* source = parts_->caches.find_idle(from);
  SequenceCache* target = parts_->caches.find_idle(to);
  source->commit_tree();
  auto transfer = std::make_shared<Transfer>(source->pools(), target->pools());
  target->copy_from(*source, begin, end, transfer);
  return loop_->begin(std::move(transfer));
}

bool MethodContext::emit(std::span<Emitted> tokens) {
  int64_t taken = parts_->output.emit(tokens, &stats());
  const bool over = parts_->output.ended();
  if (taken == 0) return over;
  tokens = tokens.first(static_cast<size_t>(taken));
  for (Emitted& e : tokens) {
    e.pass = parts_->passes.last_done(e.provenance.confirmed == Source::kLarge);
  }
  if (mutated(Mutation::kUncountedToken) && over) --taken;
  const bool first_choice = run_->request() == run_->id();
  parts_->accounts.emitted(taken, first_choice, loop_->now());
  loop_->tokens_emitted(run_, taken);
  SequenceListener& listener = *parts_->spec.listener;
  if (mutated(Mutation::kRepeatToken) && stats().preemptions > 0) {
    Emitted again = tokens.front();
    listener.on_tokens({&again, 1});
  }
  listener.on_tokens(tokens);
  return over;
}

void MethodContext::count_verification(int64_t drafted, int64_t accepted) {
  stats().count_verification(drafted, accepted);
  if (parts_->recorder && drafted > 0) parts_->recorder->verified(accepted, drafted - accepted);
}

}  // namespace tandem
