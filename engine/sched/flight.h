// A submitted pass on its way through a device queue, and its lowering to Works.
#pragma once

#include <utility>
#include <vector>

#include "engine/async/gate.h"
#include "engine/cache/sequence_cache.h"
#include "engine/decode/gen.h"
#include "engine/pass/backend.h"

namespace tandem {

class SequencePasses;
class SequenceRun;

// The books as they were when the pass was submitted; its cache has counted it since. A sequence
// owns its flights, and device queues point to them.
struct PassFlight final : Flight {
  SequenceRun* sequence = nullptr;
  SequencePasses* owner = nullptr;
  SequenceCache* cache = nullptr;
  SequenceCache* memory = nullptr;
  int turn = 0;           // on the cache, see SequenceCache::begin_pass()
  int memory_turn = 0;    // on the memory
  RequestId request = 0;  // of the sequence
  DeviceId device;
  DeviceId memory_device;
  uint64_t order = 0;  // smaller: submitted earlier
  int priority = 0;

  int base = 0;        // cache rows before the pass
  int past = 0;        // of these, rows that have come to stage.to
  int splittable = 0;  // leading added rows that may run in a chunk of their own
  int outputs = 0;     // of the whole pass
  int started = 0;     // added rows in chunks that were launched
  Gate::Pass gate;     // held while under_way
  Role role = Role::kLarge;
  bool begun = false;          // a chunk was launched
  bool under_way = false;      // a chunk is with the device
  bool leaves_values = false;  // later passes may name its picks and what it keeps
  bool shared = false;         // so its sequence keeps it
  bool recompute = false;      // restores rows that preemption took
  bool linked = false;  // it reads or leaves values; else the first four at the end are empty
  Pass pass;
  std::vector<int> frontier;  // layers done by rows past .. base-1

  // Of few passes, so that most need not look here:
  std::vector<TicketId> awaits;                // passes whose values this one reads
  std::vector<const PassFlight*> before;       // these passes
  std::vector<PageId> values;                  // by output: where its hidden row goes; or empty
  std::vector<Work::Embed> embeds;             // by input row
  std::vector<std::pair<int, int>> top_range;  // by output, into readout.ranked, until it is final

  int rows() const { return static_cast<int>(pass.add.size()); }
  int fixed_rows() const { return begun ? 0 : static_cast<int>(frontier.size()); }
  bool launched() const { return begun && started == rows(); }  // all of it
  // Have all passes that go before it run when the device comes to it? Those on its own device have
  // if they were launched; those on others, if they are done.
  bool may_run() const;
  // Is one of these passes under way?
  bool follows() const;
  void detach() override;  // sequence_passes.cpp
};

// Fills what follows from pass and books: base, past, frontier, splittable, outputs, awaits; the
// rest of its progress as of a new one. REQUIRES: `flight` has its pass and cache; the cache does
// not count the pass yet.
void prepare(PassFlight& flight);

// Added rows [flight.started, + count) as a Work: into one that may have been another before, whose
// memory is used again.
void lower(const PassFlight& flight, int count, Work* work);
inline Work lower(const PassFlight& flight, int count) {
  Work work;
  lower(flight, count, &work);
  return work;
}

// Takes the answers of a chunk into flight.readout; the last chunk makes it final.
void absorb(PassFlight& flight, const Work& work, Readout chunk);

}  // namespace tandem
