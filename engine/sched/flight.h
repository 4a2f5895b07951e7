// A submitted pass in a device queue, and its lowering to Works.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/async/gate.h"
#include "engine/cache/sequence_cache.h"
#include "engine/decode/gen.h"
#include "engine/pass/backend.h"

namespace tandem {

class SequencePasses;
class SequenceRun;

// A pass and the state of its cache when it was submitted; the cache counts its rows since. A
// sequence owns its flights; device queues point to them.
struct PassFlight final : Flight {
  SequenceRun* sequence = nullptr;
  SequencePasses* owner = nullptr;
  SequenceCache* cache = nullptr;
  SequenceCache* memory = nullptr;
  int turn = 0;           // on the cache, see PassOrder
  int memory_turn = 0;    // on the memory
  RequestId request = 0;  // of the sequence
  LoraId lora;
  DeviceId device;
  DeviceId memory_device;
  uint64_t order = 0;  // smaller: submitted earlier
  int priority = 0;

  int base = 0;                          // cache rows before the pass
  int past = 0;                          // of these, rows that have done stage.to layers
  int splittable = 0;                    // leading added rows that may run in an earlier chunk
  int outputs = 0;                       // of the whole pass
  int started = 0;                       // added rows in launched chunks
  int number = 0;                        // among the passes of the sequence, by submission, from 1
  Gate::Pass gate;                       // held while under_way
  std::atomic<bool>* late = nullptr;     // Work::late
  std::unique_ptr<LateAnswers> answers;  // of a chunk, which is under way until they are there
  Role role = Role::kLarge;
  bool begun = false;          // a chunk was launched
  bool under_way = false;      // a chunk is on the device, or its answers are late
  bool leaves_values = false;  // later passes may name its picks, distributions or hidden rows
  bool shared = false;         // these exist still, so it is not reused
  bool recompute = false;      // restores rows that preemption took
  bool linked = false;  // it reads or leaves values; else the first four members below are empty
  Pass pass;
  std::vector<int> frontier;  // layers done by rows past .. base-1

  // Used by few passes:
  std::vector<TicketId> awaits;                // passes whose values this one reads
  std::vector<const PassFlight*> before;       // these passes
  std::vector<PageId> values;                  // by output: the place of its hidden row; or empty
  std::vector<Work::Embed> embeds;             // by input row
  std::vector<std::pair<int, int>> top_range;  // by output, into readout.ranked, until it is final
  // Of a traced sequence (pass_trace.h): the batches that have run parts of it.
  struct Traced {
    TimePoint begun;
    int batches = 0;
    int rows = 0;
  } traced;

  int rows() const { return static_cast<int>(pass.add.size()); }
  int fixed_rows() const { return begun ? 0 : static_cast<int>(frontier.size()); }
  bool launched() const { return begun && started == rows(); }  // all rows
  // True: all passes that it depends on will have run before it. Passes on the same device must be
  // launched, passes on others done.
  bool may_run() const;
  // True: one of these passes is not done.
  bool follows() const;
  void detach() override;  // sequence_passes.cpp
};

// Computes base, past, frontier, splittable, outputs and awaits from the pass and its cache, and
// resets the progress. REQUIRES: `flight` has its pass and cache; the cache does not count the pass
// yet.
void prepare(PassFlight& flight);

// Lowers added rows [flight.started, + count) to a Work. Reuses the memory of `work`.
void lower(const PassFlight& flight, int count, Work* work);
inline Work lower(const PassFlight& flight, int count) {
  Work work;
  lower(flight, count, &work);
  return work;
}

// Adds the answers of a chunk to flight.readout; the last chunk completes it.
void absorb(PassFlight& flight, const Work& work, Readout&& chunk);

}  // namespace tandem
