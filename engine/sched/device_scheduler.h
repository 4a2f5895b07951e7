// Schedules one device: its pending passes, the log of moves that precede them, and its launched
// batches. Devices run independently; there is no global step.
//
// A batch is launched behind another one if one of its passes depends on a pass under way, as in a
// chain of drafts: the device finds the rows and picks without a round trip to the loop.
// Independent passes may join such a batch, but do not cause one: they wait until the device is
// idle and then share a batch with the next passes of the sequences under way. Otherwise batches
// fragment.
//
// For the same reason drafts come first: passes of a large model wait while others draft, so that
// all verify their drafts together. They wait for at most kDraftBatches batches.
//
// Loop thread only. Completions reach the loop's inbox from the backend's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/clock.h"
#include "engine/pass/backend.h"
#include "engine/sched/batcher.h"
#include "engine/sched/flight.h"

namespace tandem {

class DeviceScheduler {
 public:
  // A batch on the device. `batch` does not move until the backend is done with it.
  struct LaunchedBatch {
    Batch batch;
    std::vector<PassFlight*> flights;  // by work
    int rows = 0;
    uint64_t moves_end = 0;  // the batch carries the log up to here
    bool doomed = false;     // behind a batch that ran out of memory: it does not run either
  };
  DeviceScheduler(DeviceId device, Backend* backend, const BatchLimits& limits, bool log_frees)
      : device_(device),
        backend_(backend),
        full_limits_(limits),
        limits_(limits),
        log_frees_(log_frees) {}

  DeviceId device() const { return device_; }
  Backend* backend() const { return backend_; }
  std::vector<Move>* moves() { return &moves_; }

  // The flight outlives its time in the queue.
  void enqueue(PassFlight* flight) { pending_.push_back(flight); }
  // Removes the passes of a sequence that are not launched.
  void remove(const SequenceRun* sequence);
  // No later pass names the values of this pass.
  void forget(TicketId ticket) { forget_.push_back(ticket); }

  // The log up to `end` goes with the next batch, if necessary in a batch of its own.
  void flush(uint64_t end) { required_ = std::max(required_, end); }
  uint64_t log_end() const { return flushed_ + moves_.size(); }  // moves logged so far
  uint64_t launched() const { return flushed_; }                 // of these, with batches
  uint64_t made() const { return made_; }                        // of these, done
  // The log position after the last copy to a page that `moves` read; 0: all are done.
  uint64_t end_of_copies_to(std::span<const Move> moves) const;

  bool idle() const { return running_.empty(); }
  bool has_work() const { return !pending_.empty() || required_ > flushed_; }
  size_t pending() const { return pending_.size(); }
  int64_t pending_rows() const;  // of these passes, not launched yet

  // The next batch of pending passes; null: nothing can run now.
  const LaunchedBatch* next(TimePoint now);
  // How a work of a batch ends.
  enum class End : uint8_t {
    kDone,
    kLate,    // its answers come later: end_late()
    kPutOff,  // it has not run, as answers of its sequence are late
  };
  // Returns the oldest batch, which is done. Passes with rows left are pending again, and so are
  // those that have not run. ends: by work; empty: all are done.
  std::unique_ptr<LaunchedBatch> finish(TimePoint now, std::span<const End> ends);
  // The answers of a pass are there. If it has rows left, it is pending again.
  void end_late(PassFlight* flight, bool rows_left);
  // Keeps its memory for the next batch.
  void recycle(std::unique_ptr<LaunchedBatch> done);

  // The device is lost: nothing more is launched.
  void lose() { lost_.store(true, std::memory_order_relaxed); }
  bool lost() const { return lost_.load(std::memory_order_relaxed); }  // from any thread

  // The age of the device's oldest batch; zero: none. From any thread.
  Duration at_one_batch(TimePoint now) const {
    const TimePoint since = oldest_since_.load(std::memory_order_relaxed);
    return since == kNever ? Duration::zero() : now - since;
  }

  // The device ran out of memory for the oldest batch: its passes are pending again, and batches
  // are smaller until kRecovery of them succeed. Batches behind it are returned in the same way;
  // nothing is launched until all have been. False: the batch cannot be smaller, and has failed.
  bool retry_smaller(TimePoint now);
  bool oldest_doomed() const { return running_.front()->doomed; }

 private:
  static constexpr int kRecovery = 32;
  // Batches launched at once: two, so that the device never waits for the next one, and other
  // sequences can soon join. If only one sequence uses the device, kChain of its chained passes.
  static constexpr size_t kAhead = 2;
  static constexpr size_t kChain = 16;
  static constexpr int kDraftBatches = 8;
  void take_moves(LaunchedBatch* to);
  std::vector<Picked> pick();
  bool one_sequence() const;
  std::unique_ptr<LaunchedBatch> take_oldest(TimePoint now);
  void take_back(TimePoint now);
  static void take_back(PassFlight& flight, const Work& work);
  static void leave(PassFlight& flight);
  // The work's flight is pending again if `left`.
  template <class IsLeft>
  void put_back(const LaunchedBatch& batch, std::span<const End> ends, IsLeft left);
  void sort_pending();
  // Valid until the next call.
  std::span<const Candidate> runnable();
  void recover();

  const DeviceId device_;
  Backend* const backend_;
  const BatchLimits full_limits_;
  BatchLimits limits_;  // at present
  int succeeded_ = 0;   // batches since limits_ changed
  const bool log_frees_;
  std::vector<PassFlight*> pending_;  // oldest first
  std::vector<Move> moves_;           // the log from position flushed_ on
  uint64_t flushed_ = 0;              // moves that were launched with batches
  uint64_t made_ = 0;                 // of these, moves of completed batches
  uint64_t required_ = 0;             // the log must be launched up to here
  std::vector<TicketId> forget_;
  std::deque<std::unique_ptr<LaunchedBatch>> running_;  // oldest first
  int rows_under_way_ = 0;
  std::vector<Candidate> candidates_;                  // of the last runnable()
  std::vector<std::unique_ptr<LaunchedBatch>> spare_;  // for reuse of their memory
  std::atomic<bool> lost_{false};
  std::atomic<TimePoint> oldest_since_{kNever};  // kNever: no batch
  ModelId last_model_;
  int draft_batches_ = 0;  // since one of another model
};

}  // namespace tandem
