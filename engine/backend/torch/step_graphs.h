// Captures the decode steps of few rows as graphs (Queue::capture()), one per shape, and replays
// them with new numbers at the same addresses.
//
// Rows, reads and keys are padded to a few sizes each, so that there are few shapes. Padding rows
// read token 0 and write to scratch pages behind the pool's own, which no sequence owns. Padding
// reads read the first row; their results are dropped.
//
// The first step of a shape is launched, padded: kernels are loaded and buffers grow. The second is
// captured. All numbers that it reads are in one staging area, whose layout depends on the shape
// alone. Graphs are retired when a buffer has moved (row_buffers_moved); with too many shapes, the
// least recently used one is. A shape that the device refuses to capture is launched. If it was
// short of memory, capture is tried again some steps later. Long chunks of prompts are not replayed
// where a library computes their attention (Platform::takes_pieces).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/answer_cache.h"
#include "engine/backend/torch/graph_counts.h"
#include "engine/backend/torch/kv_pool.h"
#include "engine/backend/torch/model/buffers.h"
#include "engine/backend/torch/model/model.h"
#include "engine/backend/torch/ops.h"
#include "engine/backend/torch/placed_plan.h"
#include "engine/backend/torch/plan.h"
#include "engine/backend/torch/queue/staging.h"
#include "engine/sampling/row_answer.h"

namespace tandem {

// Mutations of the step graphs, in the same builds as those of base/mutation.h. Tests on lazy
// queues detect each.
enum class GraphMutation : uint8_t {
  kNone,
  kStagingMoves,         // every third step stages its tokens elsewhere
  kRowsCut,              // rows are cut to a size, not padded
  kNoScratch,            // padding rows write to the first pages, which sequences own
  kNotRetiredWhenMoved,  // graphs are not retired when buffers have moved
  kReadsOfTheFirst,      // one graph for all numbers of reads
  kAnswersOfFirst,       // one graph for answers and logits
  kVocabOfTheFirst,      // one graph for all sizes of the vocabulary to draw from
  kLorasOfTheFirst,      // one graph for steps with and without LoRA adapters
  kStagedAfterwards,     // arrays are copied to the device after the replay that reads them
  kOneArea,              // all batches in flight stage their arrays in one area of the host
  kStagedTokensRun,      // rows with cached tokens run the token that the host staged
  kNoAnswerCache,        // answers are not cached
};
#ifdef TANDEM_MUTATIONS
inline GraphMutation graph_mutation = GraphMutation::kNone;
inline bool mutated(GraphMutation mutation) { return graph_mutation == mutation; }
#else
constexpr bool mutated(GraphMutation) { return false; }
#endif

// Of one model, used by one device queue's thread, under InferenceMode.
class StepGraphs {
 public:
  static constexpr int kMostRows = 64;  // of a step, and reads of it
  static constexpr size_t kMostShapes = 256;
  static constexpr int kMostChanges = 16384;  // of logits, in a step
  static constexpr int kMostDrafts = 1024;    // likewise, RowQuestion::drafts
  // Steps of a shape that are launched after its first refusal for lack of memory; eight times as
  // many after each further one.
  static constexpr int kStepsBeforeRetry = 16;

  // The executor's buffers that a step writes.
  struct Buffers {
    RowBuffer& x;        // [rows, hidden]
    RowBuffer& hidden;   // [reads, hidden]
    RowBuffer& logits;   // [reads, vocab] fp32
    RowBuffer& answers;  // [reads] RowAnswer
  };

  const GraphCounts& counts() const { return counts_; }

  // Scratch pages that a pool needs for padding rows.
  static int64_t scratch_pages(int page_rows) {
    return (kMostRows / 2 - 1 + page_rows - 1) / page_rows;
  }
  // Whether steps of such a model can be replayed.
  static bool supports(const Model& model, const ModelShape& shape) {
    return model.can_be_captured() && !shape.encodes && !shape.bidirectional &&
           !shape.reads_memory && shape.max_positions >= kMostRows / 2;
  }

  // All outlive this; the pool's device queue is not null. scratch: the first of its scratch pages;
  // answers: where answers are cached and found
  StepGraphs(Model& model, const ModelShape& shape, const KvPool& pool, int64_t scratch,
             const AnswerCache& answers, const Buffers& buffers);

  // Whether the plan is a step that a graph can run.
  // loras: whether there are LoraColumns of rows with adapters
  static bool can_run(const Plan& plan, bool loras = false);
  // Whether a graph can have that many changes and drafts.
  static bool has_room(const Questions& questions) {
    return questions.changes.size() <= size_t{kMostChanges} &&
           questions.drafts.size() <= size_t{kMostDrafts};
  }

  // Puts the plan's rows on the queue, from tokens to the logits of all reads, [reads, vocab], of
  // which the first `ids` columns are needed, and to answers if these suffice. questions: [reads];
  // loras: by Plan::segments, or empty; places: [reads] places in the answer cache, or empty.
  // REQUIRES: can_run(); with answers: has_room(); fewer than AnswerCache::kMostBatches batches are
  // in flight
  void run(const Plan& plan, const Questions& questions, int ids, bool answers,
           const std::vector<LoraColumns>& loras, const std::vector<int64_t>& places = {});

  // Destroys retired graphs. REQUIRES: all batches of the executor have ended
  void release_retired() { retired_.clear(); }

 private:
  // Equal in all steps of one graph. Numbers are padded.
  struct Shape {
    int rows = 0;
    int reads = 0;
    int keys = 0;      // RowView::most_keys
    int together = 0;  // RowView::together
    int extra = 0;     // elements of RowView::extra
    int layers = 0;
    int ids = 0;
    int changes = 0;          // of logits
    int drafts = 0;           // RowQuestion::drafts
    int lora_rank = 0;        // LoraColumns::rank; 0: no row has an adapter
    uint32_t lora_parts = 0;  // LoraColumns::parts
    bool answers = false;
    bool chosen = false;  // some tokens are from cached answers
    bool caches = false;  // answers are cached

    auto operator<=>(const Shape&) const = default;
  };
  // The arguments of a step's launches.
  struct Step {
    const int32_t* token = nullptr;
    RowView rows;
    LoraView loras;
    const int64_t* read = nullptr;  // [reads] the row
    const RowQuestion* questions = nullptr;
    RowChanges changes;
    const ChosenToken* chosen = nullptr;  // [rows]
    const int64_t* places = nullptr;      // [reads] in the answer cache
    Shape shape;
    int32_t* tokens = nullptr;  // [rows], of Shape::chosen: the resolved tokens
    at::Tensor x, hidden, logits;
    at::Tensor answers;  // undefined: logits are read
    at::Tensor cached;   // AnswerCache::answers()
  };
  struct Entry {
    int64_t last_step = 0;  // of this shape; 0: none
    int launches = 0;       // before the next capture
    int refusals = 0;
    bool refused = false;  // capture is not tried again
    std::unique_ptr<Graph> graph;
  };

  // What the numbers of a step come from, as run().
  struct Given {
    const Plan& plan;
    const Questions& questions;
    const std::vector<int64_t>& places;
    const LoraColumns* loras = nullptr;  // null: no row has an adapter
  };

  Shape shape_of(const Given& given, int ids, bool answers) const;
  Step stage(const Given& given, const Shape& shape);
  LoraView stage_loras(const LoraColumns& columns, const Shape& shape);
  RowView stage_rows(const Plan& plan, const Shape& shape);
  std::function<void()> work_of(Step step) const;
  Entry& entry_of(const Shape& shape);
  void capture(Entry& entry, const std::function<void()>& work);
  void refuse(Entry& entry, const absl::Status& why);

  Model& model_;
  const ModelShape& shape_;
  const KvPool& pool_;
  const DeviceQueue& device_queue_;
  const Ops& ops_;
  const int64_t scratch_;
  const AnswerCache& answer_cache_;
  const Buffers buffers_;
  Staging staging_;
  std::shared_ptr<std::byte> tokens_;  // [kMostRows] int32_t
  std::map<Shape, Entry> entries_;
  std::vector<std::unique_ptr<Graph>> retired_;  // may still be running
  int64_t moved_ = 0;                            // row_buffers_moved when entries_ were captured
  int64_t steps_ = 0;
  GraphCounts counts_;
  int turn_ = 0;  // of GraphMutation::kStagingMoves
};

}  // namespace tandem
