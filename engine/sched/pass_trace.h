// The trace of a sequence, on request: a record for each of its passes that has ended.
//
// A sequence without a trace has no recorder, and its passes cost one test of a pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/clock.h"
#include "engine/pass/cast.h"
#include "engine/sched/flight.h"
#include "engine/sched/spec.h"

namespace tandem {

enum class PassKind : uint8_t {
  kPrefill,    // begins with rows of the prompt, and verifies nothing
  kDraft,      // proposes tokens to the large model
  kVerify,     // the large model checks drafts
  kDecode,     // any other pass that makes tokens
  kRecompute,  // only restores rows that preemption took; MethodStats does not count it
};
const char* pass_kind_name(PassKind kind);  // "prefill", "draft", ...

// Times are in microseconds since the arrival of the request.
struct PassRecord {
  int64_t start_us = 0;  // the device began its first batch
  int64_t end_us = 0;
  int32_t pass = 0;            // PassFlight::number
  int32_t rows = 0;            // of this sequence
  int32_t batches = 0;         // that ran it: more than 1 for a long prompt
  int32_t batch_rows = 0;      // of the last of these batches
  int32_t batch_requests = 0;  // in that batch, this one included
  int32_t accepted = 0;        // drafts that it verified
  int32_t rejected = 0;
  Role role = Role::kLarge;
  PassKind kind = PassKind::kDecode;
};

// Records by end.
struct PassTrace {
  // The first ones are kept.
  static constexpr size_t kMostRecords = 4096;
  // The memory of a full trace, while the vector grows.
  static constexpr int64_t kMostBytes = 3 * static_cast<int64_t>(kMostRecords * sizeof(PassRecord));

  std::vector<PassRecord> passes;
  int64_t omitted = 0;  // records beyond kMostRecords
};

// Writes the trace. Loop thread only.
class PassRecorder {
 public:
  explicit PassRecorder(const SequenceSpec& spec);
  static std::unique_ptr<PassRecorder> create(const SequenceSpec& spec);  // null: asks for no trace

  struct RanBatch {
    int rows = 0;      // of the batch
    int requests = 0;  // in it
    Duration busy{};
    TimePoint end;
  };
  // `work`, a part of the pass or all of it, has run.
  void ran(PassFlight* flight, const Work& work, const RanBatch& batch);
  // The last pass of the large model has verified drafts.
  void verified(int64_t accepted, int64_t rejected);

  // Written until the sequence ends.
  std::shared_ptr<const PassTrace> trace() const { return trace_; }

 private:
  PassKind kind_of(const PassFlight& flight) const;
  int64_t micros(TimePoint t) const;

  const TimePoint submitted_;
  const int prompt_rows_;
  const bool verifies_;  // a large model checks what others propose
  const std::shared_ptr<PassTrace> trace_ = std::make_shared<PassTrace>();
  bool large_kept_ = false;  // the last pass of the large model has a record
  size_t large_ = 0;         // its index
};

}  // namespace tandem
