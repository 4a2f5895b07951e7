// The interface between scheduler and devices: batches of lowered passes, preceded by moves.
//
// The scheduler tracks which page holds which row, and lowers each pass to a Work with physical
// addresses. A backend owns the memory: weights, KV pages, frontier rows and values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/pass/pass.h"

namespace tandem {

// A trained head (Read::head, by HeadId): reads rows after layers [0, layer).
struct HeadShape {
  std::string name;
  int layer = 0;
};

// An adapter (by AdapterId).
struct AdapterShape {
  std::string name;
  int masks = 0;           // mask embeddings
  int prompt_rows = 0;     // rows that only mask rows see, before the context
  bool additions = false;  // mask rows have low-rank additions
  int source = 0;          // width of the hidden rows that it projects; 0: none
  // Of a projector: the model and layer of the hidden rows, and how a row becomes an input.
  std::string source_fingerprint;
  int layer = 0;
  bool replace = false;
  bool foreign = false;  // the prompt's ids are the source model's
  bool aligned = false;  // each model has its own ids, and rows are aligned by the text
};

// A LoRA adapter (by LoraId): low-rank additions to the model's linear layers.
struct LoraShape {
  std::string name;
  int rank = 0;  // the largest of its layers
  int64_t bytes = 0;
};

// A loaded model, as the scheduler and the methods see it.
struct ModelShape {
  std::string name;
  std::string architecture;
  std::string dtype;
  int vocab_size = 0;  // ids of inputs and draws: [0, vocab_size)
  int layers = 0;      // of its cache
  int hidden_size = 0;
  int max_positions = 0;  // rows that a sequence may have
  int window = 0;         // sliding window in rows, the row itself included; 0: none
  // An encoder: rows of a pass see each other (See::kAll), so its passes are never divided. Its
  // cache holds keys and values for the cross-attention of another model.
  bool encodes = false;
  // A decoder whose passes are as an encoder's: all rows see each other.
  bool bidirectional = false;
  int local_window = 0;       // of its layers with a window: a row sees those fewer rows away
  bool embeds_only = false;   // it has no output matrix, or is bidirectional
  int depth = 0;              // of an encoder: its layers
  bool reads_memory = false;  // a decoder with cross-attention: each pass names a memory
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  int64_t page_bytes = 0;  // one KV page, all layers
  int64_t frontier_page_bytes = 0;
  // A row's result is bit-identical in any batch. Otherwise nearly equal logits may swap ranks.
  bool batch_invariant = false;
  // Warp::more_ids cost the output matrix's rows of these ids. Otherwise all up to the last of
  // them.
  bool reads_single_ids = false;
  // Batches wait in a queue of the device, and start without the host.
  bool queued = false;
  std::string fingerprint;  // of its weights; empty: unknown
  // What the bytes of a KV page depend on besides weights, configuration and tokens: types, layout,
  // kernels. Empty: pages cannot be saved.
  std::string page_format;
  std::vector<HeadShape> heads;  // besides its own
  std::vector<AdapterShape> adapters;
  std::vector<LoraShape> loras;
};

class TokenHistory;  // token_history.h

// Sizes of a model's pools, in pages of `page_rows` rows.
struct PoolSize {
  int page_rows = 16;
  int64_t pages = 0;           // KV: a page holds its rows for all layers
  int64_t frontier_pages = 0;  // hidden states of rows between two layers
  int64_t values = 0;          // hidden rows that passes leave for later ones
  // Rows that have done all layers also store their hidden states, before the last norm, in
  // frontier pages until the sequence's next round. A copy to a deeper model's cache needs them.
  bool retains_top_hidden = false;
};

enum class Store : uint8_t {
  kKv,
  kFrontier,
  kValue,  // hidden rows that passes leave for later ones; a page holds one
};

// A copy that runs before the batch's forward pass. Moves run in order.
struct Move {
  enum Kind : uint8_t {
    kCopy,  // `rows` consecutive slots, layers [0, layers) where store is kKv
    kFree,  // page from.page lost its last owner; for backends that check memory
    kSave,  // KV page from.page, all rows and layers, to `host`
    kLoad,  // KV page to.page, all rows and layers, from `host`
  };
  struct Place {
    ModelId model;  // in `from` it may be on another device
    PageId page;
    int slot = 0;
  };
  Kind kind = kCopy;  // kFree only, if the store is kValue
  Store store = Store::kKv;
  Place from, to;
  int rows = 1;  // from.slot + rows and to.slot + rows stay within their pages
  int layers = 0;
  // kSave, kLoad: ModelShape::page_bytes bytes in ModelShape::page_format, until the batch is done.
  std::byte* host = nullptr;
};

// A pass, or a chunk of its chain prefix, with physical addresses. Let n = past + frontier.size()
// be the rows in the cache before it. Cache row r is slot r % page_rows of page pages[r /
// page_rows]; added row i is cache row n + i during this pass.
//
// Rows run, in this order ("run rows"): the frontier rows past .. n-1, then the added rows
// first .. first + count - 1. Run row j has done layers [0, from(j)) already, and runs [from(j),
// to).
struct Work {
  const Pass* pass = nullptr;
  TicketId ticket = 0;    // names this pass's picks and distributions
  RequestId request = 0;  // the id of its sequence
  ModelId model;
  LoraId lora;                // of all rows; invalid: none
  CacheId cache;              // the owner of the pages
  int to = 0;                 // layers to run: [.., to)
  int first = 0;              // first added row of this chunk
  int count = 0;              // added rows in this chunk
  int past = 0;               // cache rows [0, past) have done `to` layers and do not run
  std::vector<int> frontier;  // layers done by cache rows past .. n-1: non-increasing, each < to
  // Page table for rows [0, n + count), in the cache's memory. It does not change until the batch
  // is done; the cache may append pages after it.
  std::span<const PageId> pages;
  std::vector<PageId> frontier_pages;  // by r / page_rows; invalid: no frontier rows
  // Store the hidden states of all run rows after layer `to` in frontier_pages: if `to` < the
  // model's layers, or in pools with retains_top_hidden.
  bool save_frontier = false;
  CacheId memory;        // cross-attention; invalid: none
  ModelId memory_model;  // the owner of the pool of memory_pages
  std::vector<PageId> memory_pages;
  int memory_rows = 0;
  bool last = true;  // the chunk that ends the pass
  // Of its sequence. True: the answers of a work wait for a constraint (WorkResult::late). The
  // device sets it. While it is true, the device runs no work of the sequence and answers ABORTED.
  // The scheduler clears it when no work of the sequence is under way. Null: answers never wait.
  std::atomic<bool>* late = nullptr;

  // For outputs whose processors count tokens (Processors::counts_tokens()); else null and empty.
  // `history` is the input tokens of cache rows [history_begin, n), which covers all rows that
  // `token_history` lacks. -1: a kChosen input, listed by row in `history_chosen` (ascending);
  // kNoToken: a mask.
  std::shared_ptr<TokenHistory> token_history;
  int history_begin = 0;
  std::vector<Token> history;
  std::vector<std::pair<int, In>> history_chosen;

  // The places of this chunk's kEmbed inputs, in the pool of the model that made them, on any
  // device. They are complete when the work runs.
  struct Embed {
    int row = 0;  // added row
    ModelId model;
    PageId value;
  };
  std::vector<Embed> embeds;

  // The outputs of this chunk, in the order of Pass::read and its rows. Reads that judge or keep
  // are never divided between chunks.
  struct Output {
    int read = 0;
    int index = 0;    // into Read::rows
    int run_row = 0;  // into the run rows above
    int out = 0;      // into Readout::row of the whole pass
    PageId value;     // the place for a `hidden` read's row; its answer is empty
  };
  std::vector<Output> outputs;

  int frontier_rows() const { return static_cast<int>(frontier.size()); }
  int rows_before() const { return past + frontier_rows(); }
  int run_rows() const { return frontier_rows() + count; }
};

struct Batch {
  // Launched while the previous batch was under way. If that one ends with RESOURCE_EXHAUSTED, so
  // does this one, as its works may depend on works that did not run.
  bool behind = false;
  std::vector<Move> moves;
  std::vector<Work> works;       // of one model; empty for moves alone
  std::vector<TicketId> forget;  // passes whose picks and distributions are not named again

  int run_rows() const {
    int n = 0;
    for (const Work& w : works) n += w.run_rows();
    return n;
  }
};

struct WorkResult;

// Answers that wait for a constraint: the rows of the work are in its cache.
class LateAnswers {
 public:
  explicit LateAnswers(const Work& work) : work_(work) {}
  virtual ~LateAnswers() = default;
  LateAnswers(const LateAnswers&) = delete;
  LateAnswers& operator=(const LateAnswers&) = delete;

  const Work& work() const { return work_; }
  // Has the answers computed on another thread, which calls `done` once. Returns at once. This
  // object and the work's pass stay until then.
  virtual void start(std::function<void(WorkResult)> done) = 0;

 private:
  const Work work_;
};

// The answers of one Work: Readout::row has one entry per Work::outputs, in that order.
struct WorkResult {
  // Of this work only: NaN rows, a bad reference. ABORTED: it has not run (Work::late).
  absl::Status status;
  Readout readout;
  std::unique_ptr<LateAnswers> late;  // set: the readout comes later
};

struct BatchResult {
  // UNAVAILABLE: the device is lost. RESOURCE_EXHAUSTED: the moves are done and no work has run; it
  // is retried in smaller batches. Other errors: all works of the batch have failed.
  absl::Status status;
  std::vector<WorkResult> works;
  // Time that the device queue spent on the batch: from when it began, or was done with the batch
  // before, until the host saw the end. So times of a device queue's batches never overlap. Device
  // queues of one GPU run at once, as processes on one processor do: what one of them waits for
  // another counts as its own.
  Duration busy{};
};

// One device. launch() is called from one thread at a time, also while batches are under way;
// batches run in launch order, and `done` is called exactly once per batch, in that order, from any
// thread and possibly before launch() returns. The batch stays alive and unchanged until then.
//
// A work reads the rows, picks and distributions of earlier batches when it runs, not when it is
// launched. If an earlier pass has failed, its rows may be missing and its values do not exist. A
// work with such values as inputs fails too. One that sees the rows may answer anything, but
// affects no other cache.
class Backend {
 public:
  using Done = std::function<void(BatchResult)>;

  virtual ~Backend() = default;  // after the last batch is done
  virtual const ModelShape& shape(ModelId model) const = 0;
  virtual const PoolSize& pool(ModelId model) const = 0;
  virtual void launch(const Batch& batch, Done done) = 0;
};

}  // namespace tandem
