// The parts of one sequence, on which its method works through MethodContext.
//
// Loop thread only.
#pragma once

#include <memory>
#include <utility>

#include "engine/sched/cache_set.h"
#include "engine/sched/conditioning.h"
#include "engine/sched/loop_services.h"
#include "engine/sched/pass_trace.h"
#include "engine/sched/reservation.h"
#include "engine/sched/sequence_accounts.h"
#include "engine/sched/sequence_output.h"
#include "engine/sched/sequence_passes.h"
#include "engine/sched/spec.h"

namespace tandem {

struct SequenceParts {
  SequenceParts(SequenceSpec&& sequence, SequenceRun* run, LoopServices* loop)
      : spec(std::move(sequence)),
        output(&spec),
        caches(&spec, loop),
        conditioning(Conditioning::create(this, loop)),
        reservation(&caches, conditioning.get()),
        passes(run, spec.id, spec.priority),
        accounts(spec.submitted, spec.series),
        recorder(PassRecorder::create(spec)) {}
  SequenceParts(const SequenceParts&) = delete;
  SequenceParts& operator=(const SequenceParts&) = delete;

  SequenceSpec spec;
  SequenceOutput output;
  CacheSet caches;
  std::unique_ptr<Conditioning> conditioning;  // null: the cast has no edges
  Reservation reservation;
  SequencePasses passes;
  SequenceAccounts accounts;
  std::unique_ptr<PassRecorder> recorder;  // null: no trace is requested
};

}  // namespace tandem
