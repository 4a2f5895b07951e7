#include "engine/sched/method_face.h"

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
