// One ragged batch: from works to readouts.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/backend/torch/adapter.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/plan.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/queue/readback.h"
#include "engine/backend/torch/queue/staging.h"
#include "engine/backend/torch/step_graphs.h"
#include "engine/sampling/readout.h"

namespace tandem {

// Used by one device queue thread, under InferenceMode. One per model: its buffers have the model's
// widths.
class Executor {
 public:
  using PoolOf = std::function<const KvPool*(ModelId)>;

  // All outlive the executor. pool_of: of any model, for the hidden rows that its passes left;
  // null: unknown. kept: of the device queue, and scratch: the first of the pool's scratch pages
  // (StepGraphs); unset: steps are not replayed.
  Executor(Model& model, const ModelShape& shape, ModelExtras& extras, const KvPool& pool,
           ValueStore& store, PoolOf pool_of, AnswerCache* kept = nullptr,
           std::optional<int64_t> scratch = std::nullopt);

  // Runs the batch's works (not its moves) on the pool's device queue, to their end. A work that
  // fails has its own status; what is thrown (out of memory, a lost device) concerns all. results:
  // by Batch::works. REQUIRES: all that was started on the device queue is finished
  void run(const Batch& batch, std::vector<WorkResult>& results);

  // The same in two parts, so that the device has the next batch before the host sees what became
  // of this one. start(): false: it is a batch for run() alone, and nothing was done; so it is with
  // one that is fed what another one under way leaves, as long as that has not been finished.
  // REQUIRES: fewer than AnswerCache::kMostBatches batches are started on the device queue
  bool start(const Batch& batch);
  // Of the oldest that was started.
  void finish(const Batch& batch, std::vector<WorkResult>& results);

 private:
  // The plan's arrays where kernels read them.
  struct PlacedCopies {
    const int64_t* from = nullptr;
    const int64_t* to = nullptr;
    int n = 0;
  };
  struct Placed {
    const int32_t* token = nullptr;
    const int32_t* fed = nullptr;
    const int32_t* position = nullptr;
    PlacedCopies load, save;
    std::vector<RowView> views;                // by Plan::segments
    std::vector<Memory> memories;              // by Plan::segments
    std::vector<const int64_t*> segment_rows;  // by Plan::segments; null: all
    std::vector<PlacedCopies> captures;        // by Plan::captures
    std::vector<PlacedCopies> left;            // likewise
    std::vector<PlacedCopies> masks;           // by Plan::masks
    std::vector<PlacedCopies> embedded;        // by Plan::embedded
    std::vector<const int64_t*> head_reads;    // by Plan::heads
    const RowQuestion* questions = nullptr;    // [reads]
  };

  // A batch that is under way: what finish() needs.
  struct Started {
    explicit Started(Queue* queue) : readback(queue), done(queue->event()) {}

    Plan plan;
    std::vector<RowQuestion> questions;
    AnswerCache::Batch kept;
    ReadBlock block;
    Readback readback;
    const RowAnswer* answers = nullptr;  // [reads], when `done` is
    std::unique_ptr<Event> done;
  };

  void build(const Batch& batch, const Plan::KeptOf& kept_of);
  AnswerCache::Batch keep(const Batch& batch);
  void place();
  void ask(const Batch& batch);
  PlacedCopies place(const RowCopies& copies);
  RowView place(const RowColumns& columns, const int32_t* extra, const int32_t* pages);
  Memory place_memory(const RowColumns& columns, const RowView& own, const int32_t* zeros);
  // The pool of an encoder whose rows lie as this model reads them; null: they do not.
  const KvPool* memory_pool(ModelId encoder) const;
  // Hidden rows and memories of other device queues are read behind their batches.
  void follow_others() const;
  // The whole step by a graph, with what is seen of it; false: it is to be launched.
  bool step(const Batch& batch, const std::vector<ReadBlock>& blocks);
  std::vector<ReadBlock> read_blocks(const Batch& batch) const;
  void forward();
  void feed(at::Tensor& x);
  at::Tensor gather(const EmbeddedRows& rows, const int64_t* from) const;
  void feed_embedded(const EmbeddedRows& rows, const PlacedCopies& copies, at::Tensor& x);
  void run_segment(size_t segment, at::Tensor& x);
  void apply_heads();
  void read_block(const Batch& batch, const ReadBlock& block, std::vector<WorkResult>& results);
  // Passes that ran may be named by their hidden rows from here on.
  void name_left(const Batch& batch, const std::vector<WorkResult>& results);
  absl::StatusOr<int> width_of(const Work::Embed& place, TicketId left_by) const;
  // Of head inputs [first, first + count): their logits, [count, vocab], or where answers will do,
  // these, [count]. In the host's memory, until the next call
  struct Seen {
    float* logits = nullptr;
    const RowAnswer* answers = nullptr;
  };
  Seen see(const ReadBlock& block, int ids, bool answers);
  void answer_block(const Batch& batch, const ReadBlock& block, const Seen& seen,
                    std::vector<WorkResult>& results);
  // seen: from the block's first head input of this work on
  absl::Status read_work(const Work& work, const Plan::Item& item, const ReadBlock& block,
                         Seen seen, RowReader& reader, Readout& readout) const;

  Model& model_;
  ModelExtras& extras_;
  const KvPool& pool_;
  ValueStore& store_;
  const PoolOf pool_of_;
  const DeviceQueue* const device_queue_;
  at::Device device_;
  const Ops& ops_;
  ModelShape shape_;  // the model's
  Plan plan_;
  Staging staging_;
  Placed placed_;
  std::vector<RowQuestion> questions_;  // [reads], of device queues with a queue
  std::vector<RowReader> readers_;      // by range of a parallel loop
  RowBuffer x_;                         // [rows, hidden] residual stream
  RowBuffer part_;                      // the same of a segment that not all rows run
  RowBuffer hidden_;                    // [reads, hidden] what the head reads
  RowBuffer logits_;                    // [reads of a block, vocab] fp32
  RowBuffer answers_;  // [reads of a block] RowAnswer, of device queues with a queue
  Readback readback_;  // of either
  std::unique_ptr<StepGraphs> graphs_;  // null: steps are not replayed
  AnswerCache* const kept_;
  std::deque<std::unique_ptr<Started>> started_;    // oldest first
  std::vector<std::unique_ptr<Started>> finished_;  // to be used again
  bool stepped_ = false;  // this batch: logits or answers are on their way
};

}  // namespace tandem
