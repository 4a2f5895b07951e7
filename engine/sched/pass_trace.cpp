#include "engine/sched/pass_trace.h"

#include <algorithm>

#include "engine/base/enum_names.h"

namespace tandem {
namespace {

constexpr auto kKindNames = enum_names<PassKind>({
    {PassKind::kPrefill, "prefill"},
    {PassKind::kDraft, "draft"},
    {PassKind::kVerify, "verify"},
    {PassKind::kDecode, "decode"},
    {PassKind::kRecompute, "recompute"},
});

}  // namespace

const char* pass_kind_name(PassKind kind) { return kKindNames[kind].data(); }

PassRecorder::PassRecorder(const SequenceSpec& spec)
    : submitted_(spec.submitted),
      prompt_rows_(static_cast<int>(spec.prompt.size())),
      verifies_(std::ranges::any_of(spec.roles(), [](const CastRole& r) {
        return r.role == Role::kLarge && !r.prompt_only;
      })) {}

std::unique_ptr<PassRecorder> PassRecorder::create(const SequenceSpec& spec) {
  return spec.trace ? std::make_unique<PassRecorder>(spec) : nullptr;
}

PassKind PassRecorder::kind_of(const PassFlight& flight) const {
  if (flight.recompute) return PassKind::kRecompute;
  if (flight.past < prompt_rows_) return PassKind::kPrefill;
  const bool drafts = flight.role == Role::kWorker || (flight.role == Role::kSmall && verifies_);
  return drafts ? PassKind::kDraft : PassKind::kDecode;
}

int64_t PassRecorder::micros(TimePoint t) const {
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(t - submitted_).count();
  return std::max<int64_t>(0, since);
}

void PassRecorder::ran(PassFlight* flight, const Work& work, const RanBatch& batch) {
  PassFlight::Traced& traced = flight->traced;
  if (traced.batches == 0) traced.begun = batch.end - batch.busy;
  ++traced.batches;
  traced.rows += work.run_rows();
  if (!work.last) return;
  const bool large = flight->role == Role::kLarge && !flight->recompute;
  const bool full = trace_->passes.size() >= PassTrace::kMostRecords;
  if (large) {
    large_kept_ = !full;
    large_ = trace_->passes.size();
  }
  if (full) {
    ++trace_->omitted;
    return;
  }
  PassRecord& record = trace_->passes.emplace_back();
  record.start_us = micros(traced.begun);
  record.end_us = micros(batch.end);
  record.pass = flight->number;
  record.rows = traced.rows;
  record.batches = traced.batches;
  record.batch_rows = batch.rows;
  record.batch_requests = batch.requests;
  record.role = flight->role;
  record.kind = kind_of(*flight);
}

void PassRecorder::verified(int64_t accepted, int64_t rejected) {
  if (!large_kept_) return;
  PassRecord& record = trace_->passes[large_];
  record.kind = PassKind::kVerify;  // also where it reads the prompt again, after a preemption
  // Of two verifications by one pass, such as a run whose only token is trusted, both count.
  record.accepted += static_cast<int32_t>(accepted);
  record.rejected += static_cast<int32_t>(rejected);
}

}  // namespace tandem
