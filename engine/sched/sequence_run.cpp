#include "engine/sched/sequence_run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/base/prefetch.h"
#include "engine/pass/constraint.h"

namespace tandem {

SequenceRun::SequenceRun(SequenceSpec spec, uint64_t order, LoopServices* loop)
    : order_(order),
      loop_(loop),
      parts_(std::move(spec), this, loop),
      context_(this, &parts_, loop) {}

SequenceRun::~SequenceRun() {
  drop_frame();
  release();
}

void SequenceRun::place(std::span<const ModelId> models) {
  TANDEM_CHECK(!task_.valid() && models.size() == spec().roles().size());
  auto cast = std::make_shared<Cast>(*spec().cast);
  for (size_t i = 0; i < models.size(); ++i) cast->roles[i].model = models[i];
  parts_.spec.cast = std::move(cast);
  parts_.spec.placed = true;
  parts_.caches.placed();
}

std::coroutine_handle<> SequenceRun::start() {
  parts_.caches.open();
  Sequence* const seen = &context_;
  task_ = parts_.spec.method(Gen(seen));
  return task_.handle();
}

void SequenceRun::publish() {
  parts_.caches.publish(parts_.output.tokens(), /*over=*/state() == kEnding);
}

void SequenceRun::release() {
  TANDEM_CHECK(gate_.empty());
  publish();
  parts_.caches.close();
}

void SequenceRun::grant() {
  ++rounds_;
  if (!parts_.accounts.has_begun()) {
    const CacheId large = parts_.caches.stage(Role::kLarge, 0).cache;
    const int64_t rows = parts_.caches.find(large)->rows();
    parts_.accounts.begun(std::min(rows, static_cast<int64_t>(spec().prompt.size())));
  }
  parts_.reservation.grant(loop_);
}

void SequenceRun::prefetch_round(std::coroutine_handle<> waiter) const {
  constexpr size_t kFrame = 512;  // a guess: frame sizes are unknown
  prefetch(waiter.address(), kFrame);
  for (const auto& cache : parts_.caches.all()) prefetch(cache.get());
}

void SequenceRun::preempt() {
  TANDEM_CHECK(flights() == 0);
  publish();
  parts_.caches.clear();
  parts_.reservation.preempted();
  parts_.accounts.preempted();
  if (mutated(Mutation::kRedrawAfterEviction)) ++parts_.spec.warp.seed;
}

bool SequenceRun::uses(ModelId model) const {
  return std::ranges::any_of(spec().roles(),
                             [model](const CastRole& r) { return r.model == model; });
}

bool SequenceRun::shares_pools_with(const SequenceRun& other) const {
  return std::ranges::any_of(other.spec().roles(),
                             [this](const CastRole& r) { return uses(r.model); });
}

std::atomic<bool>* SequenceRun::late() {
  const Processors* const processors = spec().warp.processors.get();
  return processors != nullptr && processors->constraint ? &late_ : nullptr;
}

absl::Status SequenceRun::constraint_status() const {
  const Processors* const processors = spec().warp.processors.get();
  if (processors == nullptr || !processors->constraint || !ended()) return absl::OkStatus();
  if (parts_.output.reason() != FinishReason::kEos) return absl::OkStatus();
  const auto answer = std::span(parts_.output.tokens()).subspan(spec().prompt.size());
  TokenConstraint& constraint = *processors->constraint;
  const auto tokens = static_cast<int>(answer.size());
  const bool banned = tokens < processors->min_new_tokens ||
                      std::ranges::all_of(
                          constraint.ends(),
                          [&](Token end) {
                            return std::ranges::any_of(processors->bias, [end](const auto& bias) {
                              return bias.first == end && std::isinf(bias.second);
                            });
                          });
  // The row that drew the end token has asked the same, so the answer is retained.
  const std::shared_ptr<const LegalTokens> legal = constraint.after(answer);
  if (!banned && legal != nullptr && legal->may_end) return absl::OkStatus();
  if (legal != nullptr && !legal->status.ok()) return legal->status;
  return absl::FailedPreconditionError(
      absl::StrCat("constraint: no token may follow after ", tokens,
                   " tokens; it allows none that the vocabulary, bad_token_ids, logit_bias and "
                   "min_new_tokens leave"));
}

SequenceEnd SequenceRun::make_end(absl::Status status) const {
  SequenceEnd end;
  end.status = std::move(status);
  end.reason = parts_.output.reason();
  end.stop_index = parts_.output.stop_index();
  end.prompt_tokens = spec().prompt_tokens();
  end.completion_tokens = parts_.output.emitted();
  end.stats = parts_.accounts.at_end(loop_->now());
  if (parts_.recorder) end.trace = parts_.recorder->trace();
  const Processors* const processors = spec().warp.processors.get();
  if (processors != nullptr && processors->constraint && end.status.ok()) {
    end.constraint = processors->constraint;
    const std::vector<Token>& tokens = parts_.output.tokens();
    end.answer.assign(tokens.begin() + std::ssize(spec().prompt), tokens.end());
  }
  return end;
}

}  // namespace tandem
