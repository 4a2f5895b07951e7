// A batch as arrays: which rows run which layers, which keys they see, and what is read from them.
//
// Bookkeeping on the host, without tensors. The run rows of all works are concatenated ("batch
// rows"). A work that cannot run gets a status and contributes no rows; other works are not
// affected.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/torch/row_view.h"
#include "engine/pass/backend.h"
#include "engine/sampling/row_answer.h"
#include "engine/sampling/value_store.h"

namespace tandem {

// The low-rank additions of a row: of its work's LoRA adapter, or, of a mask row, of its mask
// adapter.
struct RowAdditions {
  LoraId lora;
  AdapterId masks;

  bool valid() const { return lora.valid() || masks.valid(); }
  bool operator==(const RowAdditions&) const = default;
};

// Rows of a segment with the same additions.
struct LoraRows {
  RowAdditions additions;
  std::vector<int64_t> rows;  // numbers among the segment's rows, ascending
};

// Layers [from, to) that the same rows run.
struct Segment {
  int from = 0;
  int to = 0;
  bool kv_only = false;              // one layer, whose keys and values alone are computed
  bool all = true;                   // every batch row runs; else:
  std::vector<int64_t> index;        // the batch rows that run, ascending
  RowColumns columns;                // of these rows
  std::vector<LoraRows> loras = {};  // by their first rows
};

// Copies row from[i] of one array of hidden states to row to[i] of another.
struct RowCopies {
  std::vector<int64_t> from, to;

  int size() const { return static_cast<int>(from.size()); }
  void add(int64_t f, int64_t t) {
    from.push_back(f);
    to.push_back(t);
  }
  void clear() {
    from.clear();
    to.clear();
  }
};

// Hidden states read after layers [0, at).
struct Capture {
  int at = 0;
  RowCopies copies;  // batch row to head input
  RowCopies stored;  // batch row to place in KvPool::hidden
  RowCopies pooled;  // batch row to pooled row
};

// Head inputs that an early head transforms first.
struct HeadReads {
  HeadId head;
  std::vector<int64_t> reads;
};

// Batch rows whose input is a mask token of an adapter: token copies.from[i] to row copies.to[i].
struct MaskRows {
  AdapterId adapter;
  RowCopies copies;
};

// Batch rows conditioned on hidden rows of `model`, through the adapter's projector if it has one.
struct EmbeddedRows {
  AdapterId adapter;  // invalid: no projector
  ModelId model;
  bool replace = true;  // false: they are added to the tokens' embeddings
  RowCopies copies;     // place in KvPool::hidden of `model` to batch row
};

// Head inputs [first, first + count): of outputs [from, to) of works [begin, end).
struct ReadBlock {
  size_t begin = 0, end = 0;
  size_t from = 0, to = 0;  // to: kAllOutputs, unless the block is a piece of one work
  int first = 0, count = 0;
};
inline constexpr size_t kAllOutputs = std::numeric_limits<size_t>::max();

class Plan {
 public:
  // The width of the hidden row at `place`. INTERNAL: pass `written_by` has not written it.
  using WidthOf = std::function<absl::StatusOr<int>(const Work::Embed& place, TicketId written_by)>;

  // The pool of an encoder whose rows this model can read; null: it cannot.
  using MemoryOf = std::function<const PoolSize*(ModelId encoder)>;

  // The cached answer on the device that a kChosen input names; none: it is not cached.
  using CachedOf = std::function<std::optional<ChosenToken>(const In& in)>;

  // Whether a LoRA adapter is loaded.
  using HasLora = std::function<bool(LoraId lora)>;

  // Builds the plan of a batch in the memory of the last one. kChosen inputs are looked up in
  // `store`, then by cached_of. has_lora null: no adapter is loaded.
  void build(const Batch& batch, const ModelShape& shape, const PoolSize& pool,
             const ValueStore& store, const WidthOf& width_of, const MemoryOf& memory_of,
             const CachedOf& cached_of = {}, const HasLora& has_lora = {});

  // Most rows of a prompt are not read, so the last layer has to compute only their keys and
  // values. Splits this layer from its segment, if there are enough such rows.
  void cut_last_layer(const ModelShape& shape);

  // Sets the tokens of rows that cached_of resolved, from `store`. A work whose tokens are not
  // there gets a status.
  void resolve_chosen(const Batch& batch, const ValueStore& store);

  struct Item {
    absl::Status status;
    int first_row = 0;     // batch row of run row 0
    int first_read = 0;    // its first head input
    int reads = 0;         // its head inputs: one per output that the head answers
    int first_pooled = 0;  // its first pooled row
    int pooled = 0;        // its pooled rows: one per output of a Read::pool
  };
  std::vector<Item> items;          // by Batch::works
  std::vector<Token> token;         // [rows]; -1 for frontier rows, masks and replaced embeddings
  std::vector<ChosenToken> chosen;  // [rows]: tokens in cached answers; empty: none
  std::vector<MaskRows> masks;      // one per adapter
  std::vector<EmbeddedRows> embedded;  // one per adapter, model and value of `replace`
  std::vector<int32_t> replaced;  // [rows]: 0 for masks and replaced embeddings, else -1; or empty
  RowColumns columns;             // [rows]
  std::vector<int32_t> extra;     // cache rows
  std::vector<int32_t> pages;  // page tables, each followed by its prompts' pages; memories' tables
  ModelId memory;              // the encoder whose rows are read; invalid: none
  std::vector<int32_t> zeros;  // [rows], if a memory is read
  RowCopies load;              // frontier slot (page * page_rows + slot in page) to batch row
  RowCopies save;              // batch row to frontier slot
  std::vector<Segment> segments;  // ascending
  std::vector<Capture> captures;  // ascending, one per `at`
  int adapted_rows = 0;           // rows with low-rank additions
  int reads = 0;                  // head inputs
  int pooled = 0;                 // rows whose states after the last norm are read
  std::vector<HeadReads> heads;   // one per early head

  int rows() const { return static_cast<int>(token.size()); }
  // The draft that output i of works[w] judges: the input of the next row of its chain. -1: none.
  Token judged(const Batch& batch, size_t w, size_t i) const;
  size_t array_bytes() const;  // an upper bound for the arrays that kernels read, with alignment

  // Blocks of at most `most` (1 or more) head inputs: whole works, or pieces of a work that has
  // more. Ordered by work.
  std::vector<ReadBlock> read_blocks(const Batch& batch, int most) const;

 private:
  absl::Status check(const Work& work, const ModelShape& shape, const PoolSize& pool,
                     const MemoryOf& memory_of, const HasLora& has_lora);
  absl::Status check_memory(const Work& work, const ModelShape& shape, const MemoryOf& memory_of);
  absl::Status check_outputs(const Work& work, const ModelShape& shape, const PoolSize& pool) const;
  absl::Status resolve_inputs(const Work& work, const ModelShape& shape, const ValueStore& store,
                              const WidthOf& width_of, const CachedOf& cached_of);
  absl::Status add_mask_input(const Pass& pass, int mask, int row, const ModelShape& shape);
  absl::Status add_embedded_input(const Work& work, const In& in, const Work::Embed& place, int row,
                                  const ModelShape& shape, const WidthOf& width_of);
  void add_inputs();
  void mark_replaced();
  void add_rows(const Work& work, const ModelShape& shape, const PoolSize& pool);
  void add_visibility(const Work& work, const ModelShape& shape);
  void see_all(const Work& work, int window);
  void add_memory(const Work& work);
  void add_frontier(const Work& work, const PoolSize& pool);
  void add_reads(const Work& work, Item& item);
  void cut_segments();
  void add_loras(Segment& s) const;  // s.index: all rows of the segment
  void cut_reads(const Work& work, size_t w, int most, std::vector<ReadBlock>* blocks) const;

  std::vector<int32_t> from_, to_;       // [rows] the layers that a row runs
  std::vector<RowAdditions> additions_;  // [rows]
  std::vector<int32_t> borders_;
  // Scratch of one work.
  std::vector<Token> tokens_;                             // by added row
  std::vector<std::pair<int, ChosenToken>> work_chosen_;  // with the run row
  std::vector<MaskRows> work_masks_;                      // by run row
  std::vector<EmbeddedRows> work_embedded_;               // by run row
  std::vector<int> position_;                             // by run row
  std::vector<int32_t> prompts_;            // cache rows of prompts, which mask rows see
  std::vector<std::vector<int32_t>> path_;  // by run row: its extra rows, before the window
};

}  // namespace tandem
