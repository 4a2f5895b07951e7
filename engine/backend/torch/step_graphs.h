// Decode steps of few rows as graphs (Queue::capture()): what a step launches is put together once
// for each shape that it may have, and replayed from then on with other numbers in the same places.
//
// Rows, rows that are read and keys are filled up to the next of few sizes each, so that few shapes
// are met. A row that fills up is one like others: token 0, in the scratch pages behind a pool's
// own, which no sequence has, so it neither reads nor writes what is anybody's. A read that fills
// up reads the first row once more, and nobody asks for it.
//
// When a shape is met first it is launched as it is, filled up: kernels are loaded and buffers
// grow. Met again it is captured. All that it reads of a batch lies in one staging area, whose
// layout is the shape's. Graphs are given up when buffers have moved (row_buffers_moved), and that
// of the shape that was not met for longest when there are too many. A shape that the device will
// not capture is launched; where it was short of memory it is asked again, some steps later.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/plan.h"
#include "engine/backend/torch/queue/staging.h"
#include "engine/sampling/row_answer.h"

namespace tandem {

// Mutations of the step graphs, inactive like those of base/mutation.h and in the same builds:
// tests on lazy queues find each.
enum class GraphMutation : uint8_t {
  kNone,
  kStagingMoves,      // every third step stages its tokens elsewhere
  kRowsCut,           // rows are cut down to a size, not filled up
  kNoScratch,         // rows that fill up lie in the first pages, which are somebody's
  kKeptWhenMoved,     // graphs stay when buffers have moved
  kReadsOfTheFirst,   // one graph for all numbers of reads
  kAnswersOfFirst,    // one graph for answers and logits
  kVocabOfTheFirst,   // one graph for all numbers of tokens that may be drawn
  kStagedAfterwards,  // arrays go to the device behind the replay that reads them
  kOneArea,           // all batches under way stage their arrays in one area of the host
  kFedAsStaged,       // rows whose tokens the device has are fed what the host knows of them
  kKeptNowhere,       // answers are kept where nobody finds them
};
#ifdef TANDEM_MUTATIONS
inline GraphMutation graph_mutation = GraphMutation::kNone;
inline bool mutated(GraphMutation mutation) { return graph_mutation == mutation; }
#else
constexpr bool mutated(GraphMutation) { return false; }
#endif

// One device queue thread's, under InferenceMode, of one model.
class StepGraphs {
 public:
  static constexpr int kMostRows = 64;  // of a step, and reads of it
  static constexpr size_t kMostShapes = 256;
  // Steps of a shape that are launched after its first refusal for want of memory; eight times as
  // many after each one that follows.
  static constexpr int kStepsBeforeRetry = 16;

  // What a step writes, the executor's own.
  struct Buffers {
    RowBuffer& x;        // [rows, hidden]
    RowBuffer& hidden;   // [reads, hidden]
    RowBuffer& logits;   // [reads, vocab] fp32
    RowBuffer& answers;  // [reads] RowAnswer
  };

  // Pages of scratch that a pool must have, for rows that fill up.
  static int64_t scratch_pages(int page_rows) {
    return (kMostRows / 2 - 1 + page_rows - 1) / page_rows;
  }
  // Whether steps of such a model may be replayed.
  static bool fit(const Model& model, const ModelShape& shape) {
    return model.can_be_captured() && !shape.encodes && !shape.reads_memory &&
           shape.max_positions >= kMostRows / 2;
  }

  // All outlive this; the pool is on a device queue with a queue. scratch: the first of its scratch
  // pages; kept: where answers are kept and looked for
  StepGraphs(Model& model, const ModelShape& shape, const KvPool& pool, int64_t scratch,
             const AnswerCache& kept, const Buffers& buffers);

  // Whether the plan is a step for a graph.
  static bool fits(const Plan& plan);

  // Puts the plan's rows on the queue, from tokens to logits of all that is read, [reads, vocab] of
  // which the first `ids` columns are wanted, and to the answers if they will do. questions:
  // [reads]; keep: [reads] where answers are kept besides, or empty. REQUIRES: fits(); fewer than
  // AnswerCache::kMostBatches batches are under way
  void run(const Plan& plan, const std::vector<RowQuestion>& questions, int ids, bool answers,
           const std::vector<int64_t>& keep = {});

  // Lets graphs go that were given up. REQUIRES: all batches of the executor have ended
  void let_go() { given_up_.clear(); }

 private:
  // What is the same in all steps of one graph. Numbers are filled up.
  struct Shape {
    int rows = 0;
    int reads = 0;
    int keys = 0;      // RowView::most_keys
    int together = 0;  // RowView::together
    int extra = 0;     // numbers of RowView::extra
    int layers = 0;
    int ids = 0;
    bool answers = false;
    bool chosen = false;  // some rows' tokens are of answers that are kept
    bool keeps = false;   // answers are kept

    auto operator<=>(const Shape&) const = default;
  };
  // What a step's launches name.
  struct Step {
    const int32_t* token = nullptr;
    RowView rows;
    const int64_t* read = nullptr;  // [reads] the row
    const RowQuestion* questions = nullptr;
    const ChosenToken* chosen = nullptr;  // [rows]
    const int64_t* keep = nullptr;        // [reads]
    Shape shape;
    int32_t* fed = nullptr;  // [rows], of Shape::chosen: the tokens
    at::Tensor x, hidden, logits;
    at::Tensor answers;  // undefined: logits will do
    at::Tensor kept;     // all that are kept
  };
  struct Kept {
    int64_t met = 0;   // the last step of this shape; 0: none
    int launches = 0;  // to go before a capture is tried
    int refusals = 0;
    bool hopeless = false;  // no capture is tried any more
    std::unique_ptr<Graph> graph;
  };

  Shape shape_of(const Plan& plan, int ids, bool answers, bool keeps) const;
  Step stage(const Plan& plan, const std::vector<RowQuestion>& questions,
             const std::vector<int64_t>& keep, const Shape& shape);
  RowView stage_rows(const Plan& plan, const Shape& shape);
  std::function<void()> work_of(Step step) const;
  Kept& kept_of(const Shape& shape);
  void capture(Kept& kept, const std::function<void()>& work);
  void refuse(Kept& kept, const absl::Status& why);

  Model& model_;
  const ModelShape& shape_;
  const KvPool& pool_;
  const DeviceQueue& device_queue_;
  const Ops& ops_;
  const int64_t scratch_;
  const AnswerCache& answer_cache_;
  const Buffers buffers_;
  Staging staging_;
  std::shared_ptr<std::byte> fed_;  // [kMostRows] int32_t
  std::map<Shape, Kept> kept_;
  std::vector<std::unique_ptr<Graph>> given_up_;  // which may be replayed at this moment
  int64_t moved_ = 0;                             // row_buffers_moved, of kept_
  int64_t steps_ = 0;
  bool warned_ = false;  // of a refusal
  int turn_ = 0;
};

}  // namespace tandem
