// Runs one ragged batch of a model: from works to readouts.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/backend/torch/adapter.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/block_reader.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/placed_plan.h"
#include "engine/backend/torch/plan.h"
#include "engine/backend/torch/queue/queue.h"
#include "engine/backend/torch/queue/readback.h"
#include "engine/backend/torch/step_graphs.h"

namespace tandem {

// Used by one device queue's thread, under InferenceMode. One per model: its buffers have the
// model's widths.
class Executor {
 public:
  using PoolOf = std::function<const KvPool*(ModelId)>;

  // All outlive the executor. pool_of: the pool of any model, for hidden rows and encoder memories;
  // null: unknown. answers: of the device queue. scratch: the first of the pool's scratch pages
  // (StepGraphs); unset: steps are not replayed.
  Executor(Model& model, const ModelShape& shape, ModelExtras& extras, const KvPool& pool,
           ValueStore& store, PoolOf pool_of, AnswerCache* answers = nullptr,
           std::optional<int64_t> scratch = std::nullopt);

  // Runs the batch's works (not its moves) on the pool's device queue, to their end. A work that
  // fails has its own status; an exception (out of memory, a lost device) concerns all. results: by
  // Batch::works. REQUIRES: all work started on the device queue is finished
  void run(const Batch& batch, std::vector<WorkResult>& results);

  // run() in two parts, so that the device has the next batch before the host has read this one.
  // start() returns false and does nothing for a batch that only run() can run: also for one that
  // reads results of an unfinished batch that are not on the device. REQUIRES: fewer than
  // AnswerCache::kMostBatches batches are started on the device queue
  bool start(const Batch& batch);
  // Ends the oldest started batch.
  void finish(const Batch& batch, std::vector<WorkResult>& results);

  // All 0 if steps are not replayed.
  GraphCounts graph_counts() const {
    return graphs_ == nullptr ? GraphCounts() : graphs_->counts();
  }

 private:
  // A batch that finish() has yet to read.
  struct Started {
    explicit Started(Queue* queue) : readback(queue), done(queue->event()) {}

    Plan plan;
    AnswerCache::Batch cached;
    ReadBlock block;
    Readback readback;
    const RowAnswer* answers = nullptr;  // [reads], valid after `done`
    std::unique_ptr<Event> done;
  };

  // Before the forward pass.
  void build(const Batch& batch, const Plan::CachedOf& cached_of);
  // False: the host needs the rows' logits, as answers do not suffice for all reads, or a penalty
  // counts a token that is known nowhere yet. cached_of: as Plan::build()
  bool set_questions(const Batch& batch, const Plan::CachedOf& cached_of);
  void set_loras();
  const LoraWeights& weights_of(const RowAdditions& additions) const;
  AnswerCache::Batch cache_answers(const Batch& batch);
  std::vector<ReadBlock> read_blocks(const Batch& batch) const;
  void place();
  absl::StatusOr<int> width_of(const Work::Embed& place, TicketId written_by) const;
  // The pool of an encoder whose rows this model can read; null: it cannot.
  const KvPool* memory_pool(ModelId encoder) const;
  // Waits for the device queues whose hidden rows and memories the batch reads.
  void follow_others() const;

  // The forward pass.
  // Runs the whole step, logits or answers included, by a graph; false: it has to be launched.
  bool step(const Batch& batch, const std::vector<ReadBlock>& blocks);
  // Whether a graph can run the plan.
  bool can_replay() const;
  void forward();
  void set_inputs(at::Tensor& x);
  at::Tensor gather(const EmbeddedRows& rows, const int64_t* from) const;
  void set_embedded(const EmbeddedRows& rows, const PlacedCopies& copies, at::Tensor& x);
  void run_segment(size_t segment, at::Tensor& x);
  void apply_heads();

  // After the forward pass.
  void read_block(const Batch& batch, const ReadBlock& block, std::vector<WorkResult>& results);
  // The logits that a block needs, until the next call.
  cpu::Columns head_need(const Batch& batch, const ReadBlock& block);
  // The head's output for a block, until the next call. answers: whether answers suffice
  HeadRows head_rows(const ReadBlock& block, const cpu::Columns& need, bool answers);
  // Sums the pooled rows of each work.
  void read_pooled(std::vector<WorkResult>& results);
  // Makes the hidden rows of successful passes readable by later passes.
  void publish_hidden_rows(const Batch& batch, const std::vector<WorkResult>& results);

  Model& model_;
  const ModelShape shape_;  // the model's
  ModelExtras& extras_;
  const KvPool& pool_;
  ValueStore& store_;
  const PoolOf pool_of_;
  const DeviceQueue* const device_queue_;
  const at::Device device_;
  const Ops& ops_;
  const bool takes_pieces_;  // Platform::takes_pieces()
  Plan plan_;
  PlacedPlan placed_;
  Questions questions_;           // [reads], of device queues with a queue
  bool answers_suffice_ = false;  // for all reads of this batch
  BlockReader reader_;
  RowReader asker_;                // scratch of set_questions()
  std::vector<int> ids_;           // scratch of head_need()
  std::vector<int32_t> expected_;  // likewise
  std::vector<Token> more_ids_;    // likewise
  std::vector<LoraGroup> loras_;   // of a segment, without Ops::add_lora
  std::vector<LoraColumns>
      lora_columns_;   // with it, by Plan::segments; empty: no row has an adapter
  RowBuffer x_;        // [rows, hidden] residual stream
  RowBuffer part_;     // the same, of a segment that not all rows run
  RowBuffer hidden_;   // [reads, hidden] the head's input
  RowBuffer pooled_;   // [pooled rows, hidden]
  RowBuffer normed_;   // the same, after the last norm
  RowBuffer logits_;   // [reads of a block, vocab] fp32
  RowBuffer answers_;  // [reads of a block] RowAnswer, of device queues with a queue
  Readback readback_;  // of either
  std::unique_ptr<StepGraphs> graphs_;  // null: steps are not replayed
  AnswerCache* const answer_cache_;
  std::deque<std::unique_ptr<Started>> started_;  // oldest first
  std::vector<std::unique_ptr<Started>> spare_;   // for reuse
  bool stepped_ = false;  // this batch: logits or answers are already on the queue
};

}  // namespace tandem
