// A batch written out as arrays: which rows run which layers, what they see, what is read of them.
//
// Pure bookkeeping on the host, without tensors. The run rows of all works are put one after the
// other ("batch rows"). A work that cannot run gets a status and contributes no rows; the others do
// not notice.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/backend/torch/row_view.h"
#include "engine/pass/backend.h"
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

// Hidden states that the head reads: batch rows after layers [0, at), to inputs of the head.
struct Capture {
  int at = 0;
  RowCopies copies;
};

// Inputs of the head that a trained head changes first.
struct HeadReads {
  HeadId head;
  std::vector<int64_t> reads;
};

class Plan {
 public:
  // Rebuilds the plan, keeping the memory of the last one. `store` resolves kChosen inputs.
  void build(const Batch& batch, const ModelShape& shape, const PoolSize& pool,
             const ValueStore& store);

  struct Item {
    absl::Status status;
    int first_row = 0;   // batch row of run row 0
    int first_read = 0;  // head input of Work::outputs[0]
  };
  std::vector<Item> items;        // by Batch::works
  std::vector<Token> token;       // [rows]; -1 for frontier rows
  RowColumns columns;             // [rows]
  std::vector<int32_t> extra;     // cache rows
  std::vector<int32_t> pages;     // all page tables
  RowCopies load;                 // frontier slot (page * page_rows + slot in it) to batch row
  RowCopies save;                 // batch row to frontier slot
  std::vector<Segment> segments;  // ascending; every row in those of the layers that it runs
  std::vector<Capture> captures;  // ascending, one per `at`
  int reads = 0;                  // head inputs
  std::vector<HeadReads> heads;   // one per head that is read

  int rows() const { return static_cast<int>(token.size()); }
  size_t array_bytes() const;  // of all arrays that kernels read, at least

 private:
  absl::Status check(const Work& work, const ModelShape& shape, const PoolSize& pool) const;
  absl::Status resolve_tokens(const Work& work, const ModelShape& shape, const ValueStore& store);
  void add_rows(const Work& work, const PoolSize& pool);
  void add_visibility(const Work& work, const ModelShape& shape);
  void add_frontier(const Work& work, const PoolSize& pool);
  void add_reads(const Work& work, const Item& item);
  void cut_segments();

  std::vector<int32_t> from_, to_;  // [rows] layers that the row runs
  std::vector<int32_t> borders_;
  std::vector<Token> chosen_;               // scratch: tokens of one work's added rows
  std::vector<int> position_;               // scratch: positions of one work's run rows
  std::vector<std::vector<int32_t>> path_;  // scratch: by run row, its extra rows before the window
};

}  // namespace tandem
