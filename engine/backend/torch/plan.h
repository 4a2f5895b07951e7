// A batch written out as arrays: which rows run which layers, what they see, what is read of them.
//
// Pure bookkeeping on the host, without tensors. The run rows of all works are put one after the
// other ("batch rows"). A work that cannot run gets a status and contributes no rows; the others do
// not notice.
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

// Layers [from, to) with the same rows running in all of them.
struct Segment {
  int from = 0;
  int to = 0;
  bool all = true;             // every batch row runs; else:
  std::vector<int64_t> index;  // the batch rows that run, ascending
  RowColumns columns;          // theirs
};

// Row from[i] of one array of hidden states goes to row to[i] of another.
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

// Hidden states that are read: batch rows after layers [0, at), to inputs of the head, and to the
// places of hidden rows that the pass leaves.
struct Capture {
  int at = 0;
  RowCopies copies;
  RowCopies left;
};

// Inputs of the head that a trained head changes first.
struct HeadReads {
  HeadId head;
  std::vector<int64_t> reads;
};

// Batch rows that are fed with an adapter's masks: mask copies.from[i] to row copies.to[i].
struct MaskRows {
  AdapterId adapter;
  RowCopies copies;
};

// Batch rows that are fed with hidden rows of `model`, through the adapter's projector, or bare.
struct EmbeddedRows {
  AdapterId adapter;  // invalid: bare
  ModelId model;
  bool replace = true;  // else they are added to the tokens' embeddings
  RowCopies copies;     // place in the model's pool to batch row
};

// Head inputs [first, first + count), those of outputs [from, to) of works [begin, end).
struct ReadBlock {
  size_t begin = 0, end = 0;
  size_t from = 0, to = 0;  // kAllOutputs, unless it is a piece of one work
  int first = 0, count = 0;
};
inline constexpr size_t kAllOutputs = std::numeric_limits<size_t>::max();

class Plan {
 public:
  // Width of a hidden row that lies where `place` says, if pass `left_by` has left it there; else
  // INTERNAL.
  using WidthOf = std::function<absl::StatusOr<int>(const Work::Embed& place, TicketId left_by)>;

  // Pools of an encoder whose rows this model can read; null: it cannot.
  using MemoryOf = std::function<const PoolSize*(ModelId encoder)>;

  // What the device has of a kChosen input that the host has not seen yet; none: the same as it.
  using KeptOf = std::function<std::optional<ChosenToken>(const In& in)>;

  // Rebuilds the plan, keeping the memory of the last one. `store` resolves kChosen inputs, and
  // where it has none, kept_of.
  void build(const Batch& batch, const ModelShape& shape, const PoolSize& pool,
             const ValueStore& store, const WidthOf& width_of, const MemoryOf& memory_of,
             const KeptOf& kept_of = {});

  // The tokens of rows that kept_of knew, once the host has seen them. A work whose tokens are not
  // there gets a status.
  void settle(const Batch& batch, const ValueStore& store);

  struct Item {
    absl::Status status;
    int first_row = 0;   // batch row of run row 0
    int first_read = 0;  // its first head input
    int reads = 0;       // its head inputs: one for each output that is not a hidden row
  };
  std::vector<Item> items;          // by Batch::works
  std::vector<Token> token;         // [rows]; -1 for frontier rows, masks and replaced embeddings
  std::vector<ChosenToken> chosen;  // [rows]: what the device has of their tokens; empty: nothing
  std::vector<MaskRows> masks;      // one for each adapter
  std::vector<EmbeddedRows> embedded;  // likewise, and for each model and way
  std::vector<int32_t> fed;  // [rows]: 0 for masks and replaced embeddings, else -1; empty: none is
  RowColumns columns;        // [rows]
  std::vector<int32_t> extra;  // cache rows
  std::vector<int32_t> pages;  // all page tables, each with its prompts' pages behind it; memories'
  ModelId memory;              // the encoder whose rows are read; invalid: none are
  std::vector<int32_t> zeros;  // [rows], where a memory is read
  RowCopies load;              // frontier slot (page * page_rows + slot in it) to batch row
  RowCopies save;              // batch row to frontier slot
  std::vector<Segment> segments;  // ascending; every row in those of the layers that it runs
  std::vector<Capture> captures;  // ascending, one per `at`
  int reads = 0;                  // head inputs
  std::vector<HeadReads> heads;   // one per head that is read

  int rows() const { return static_cast<int>(token.size()); }
  size_t array_bytes() const;  // of all arrays that kernels read, at least

  // Which head inputs are read together: whole works, or pieces of one that has more of them than
  // `most` (at least 1). Each work is in one or more, in order.
  std::vector<ReadBlock> read_blocks(const Batch& batch, int most) const;

 private:
  absl::Status check(const Work& work, const ModelShape& shape, const PoolSize& pool,
                     const MemoryOf& memory_of);
  absl::Status check_memory(const Work& work, const ModelShape& shape, const MemoryOf& memory_of);
  absl::Status check_outputs(const Work& work, const ModelShape& shape, const PoolSize& pool) const;
  absl::Status resolve_inputs(const Work& work, const ModelShape& shape, const ValueStore& store,
                              const WidthOf& width_of, const KeptOf& kept_of);
  absl::Status feed_mask(const Pass& pass, int mask, int row, const ModelShape& shape);
  absl::Status feed_embedded(const Work& work, const In& in, const Work::Embed& place, int row,
                             const ModelShape& shape, const WidthOf& width_of);
  void add_fed();
  void mark_fed();
  void add_rows(const Work& work, const ModelShape& shape, const PoolSize& pool);
  void add_visibility(const Work& work, const ModelShape& shape);
  void see_all(const Work& work);
  void add_memory(const Work& work);
  void add_frontier(const Work& work, const PoolSize& pool);
  void add_reads(const Work& work, Item& item);
  void cut_segments();
  void cut_reads(const Work& work, size_t w, int most, std::vector<ReadBlock>* blocks) const;

  std::vector<int32_t> from_, to_;  // [rows] layers that the row runs
  std::vector<int32_t> borders_;
  std::vector<Token> tokens_;                             // scratch: of one work's added rows
  std::vector<std::pair<int, ChosenToken>> work_chosen_;  // scratch: likewise, by run row
  std::vector<MaskRows> work_masks_;                      // scratch: of one work, by run row
  std::vector<EmbeddedRows> work_embedded_;               // scratch: likewise
  std::vector<int> position_;     // scratch: positions of one work's run rows
  std::vector<int32_t> prompts_;  // scratch: cache rows that one work's mask rows see as well
  std::vector<std::vector<int32_t>> path_;  // scratch: by run row, its extra rows before the window
};

}  // namespace tandem
