// A device queue: the passes that wait for it, the moves that go before them, and the batches it
// works on. Device queues cycle independently of each other; there is no global step.
//
// A batch goes behind one that is under way where a pass follows on one that is under way, as in a
// chain of drafts: the device finds the earlier ones' rows and picks when it comes to it, and need
// not wait for the loop between them. Other passes go with it, but not behind others without it:
// they would miss the company of those that come back from the batch that is under way.
//
// Loop thread only. Completions come to the loop's inbox from the backend's thread.
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
  // A batch with the device. `batch` stays where it is until the backend is done with it.
  struct LaunchedBatch {
    Batch batch;
    std::vector<PassFlight*> flights;  // by work
    int rows = 0;
    uint64_t moves_end = 0;  // of the log: the batch carries the moves before
    bool doomed = false;     // behind one that had no memory: it has not run either
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

  // The flight stays where it is until it is done or removed.
  void enqueue(PassFlight* flight) { pending_.push_back(flight); }
  // Takes out the passes of a sequence that no device works on yet.
  void remove(const SequenceRun* sequence);
  // Values of this pass are not wanted any more.
  void forget(TicketId ticket) { forget_.push_back(ticket); }

  // Moves that someone waits for go with the next batch, if need be one of their own.
  void flush(uint64_t end) { wanted_ = std::max(wanted_, end); }
  uint64_t log_end() const { return flushed_ + moves_.size(); }  // moves asked for so far
  uint64_t made() const { return made_; }                        // of these, made
  // Where the last copy to one of the places that `moves` read stands in the log; 0: it is made.
  uint64_t end_of_copies_to(std::span<const Move> moves) const;

  bool idle() const { return running_.empty(); }
  bool has_work() const { return !pending_.empty() || wanted_ > flushed_; }
  size_t pending() const { return pending_.size(); }
  int64_t pending_rows() const;  // of these passes, not launched yet

  // The next batch, taken from what is pending; null when nothing can run now.
  const LaunchedBatch* next(TimePoint now);
  // The oldest batch is done: hands it over; passes with rows left are pending again.
  std::unique_ptr<LaunchedBatch> finish(TimePoint now);
  // Takes it back, so that the next batch can use its memory.
  void recycle(std::unique_ptr<LaunchedBatch> done);

  // The device is gone: nothing is launched any more.
  void lose() { lost_.store(true, std::memory_order_relaxed); }
  bool lost() const { return lost_.load(std::memory_order_relaxed); }  // from any thread

  // How long the device has been at its oldest batch; zero: it has none. From any thread.
  Duration at_one_batch(TimePoint now) const {
    const TimePoint since = oldest_since_.load(std::memory_order_relaxed);
    return since == kNever ? Duration::zero() : now - since;
  }

  // The device had no memory for the oldest batch: its passes are pending again and batches get
  // smaller, until kRecovery of them went well. False: the batch cannot get smaller, and is done.
  // Those behind it come back likewise, and then nothing is under way until all have.
  bool retry_smaller(TimePoint now);
  bool oldest_doomed() const { return running_.front()->doomed; }

 private:
  static constexpr int kRecovery = 32;
  // Batches under way at once: two, so that the device has the next one when it is done, and others
  // can join it soon. Where a single sequence uses the device queue nobody could join: so many of a
  // chain.
  static constexpr size_t kAhead = 2;
  static constexpr size_t kChain = 16;
  void take_moves(LaunchedBatch* to);
  std::vector<Picked> pick();
  bool one_sequence() const;
  std::unique_ptr<LaunchedBatch> take_oldest(TimePoint now);
  void take_back(TimePoint now);
  template <class Left>
  void put_back(const LaunchedBatch& batch, Left left);
  // Until the next call.
  std::span<const Candidate> runnable();
  void recover();

  const DeviceId device_;
  Backend* const backend_;
  const BatchLimits full_limits_;
  BatchLimits limits_;  // at present
  int went_well_ = 0;   // batches since limits_ changed
  const bool log_frees_;
  std::vector<PassFlight*> pending_;  // oldest first
  std::vector<Move> moves_;           // the log, from number flushed_ on
  uint64_t flushed_ = 0;              // moves that went with batches
  uint64_t made_ = 0;                 // of these, in batches that are done
  uint64_t wanted_ = 0;               // someone waits until so many are made
  std::vector<TicketId> forget_;
  std::deque<std::unique_ptr<LaunchedBatch>> running_;  // oldest first
  int rows_under_way_ = 0;
  std::vector<Candidate> candidates_;  // of the last runnable()
  std::vector<std::unique_ptr<LaunchedBatch>>
      spare_;  // their contents are over; their memory is not
  std::atomic<bool> lost_{false};
  std::atomic<TimePoint> oldest_since_{kNever};  // never: nothing is running
  ModelId last_model_;
};

}  // namespace tandem
