#include "engine/sched/method_face.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/planted.h"
#include "engine/sched/sequence_run.h"

namespace tandem {

bool MethodFace::reserve(std::span<const Need> needs, std::coroutine_handle<> waiter) {
  parts_->reservation.want(needs, tokens());
  waiter_ = waiter;
  if (!host_->ask_pages(run_)) return false;
  waiter_ = nullptr;
  return true;
}

// Rows of a prompt, say: between two layers they would be a pass that nothing can divide.
void MethodFace::refill(Stage stage) {
  const SequenceCache& cache = *parts_->caches.find(stage.cache);
  const int layers = cache.pools()->layers;
  if (stage.to >= layers) return;
  const int have = cache.rows();
  const int end = std::min(parts_->reservation.frontier_begin(stage.cache),
                           static_cast<int>(tokens().size()) - 1);
  if (have >= end) return;
  Pass pass = blank_pass();
  pass.stage = {stage.cache, layers};
  for (int i = have; i < end; ++i) pass.add.chain(token_in(tokens()[static_cast<size_t>(i)]));
  submit_refill(std::move(pass));
}

void MethodFace::submit_refill(Pass&& pass) {
  parts_->passes.submit(std::move(pass), parts_->caches, host_, SequencePasses::kRefill)->let_go();
}

void MethodFace::copy(CacheId from, int begin, int end, CacheId to) {
  SequenceCache* source = parts_->caches.find_idle(from);
  SequenceCache* target = parts_->caches.find_idle(to);
  source->settle();
  auto transfer = std::make_shared<Transfer>(source->pools(), target->pools());
  target->copy_from(*source, begin, end, transfer);
  host_->begin(std::move(transfer));
}

bool MethodFace::emit(std::vector<Emitted> tokens) {
  int64_t taken = parts_->output.emit(&tokens, &stats());
  const bool over = parts_->output.ended();
  if (taken == 0) return over;
  if (planted(Bug::kUncountedToken) && over) --taken;
  const bool first_choice = run_->request() == run_->id();
  parts_->accounts.emitted(taken, first_choice, host_->now());
  host_->tokens_emitted(run_, taken);
  parts_->spec.listener->on_tokens(std::move(tokens));
  return over;
}

}  // namespace tandem
