// What a device runs: batches of lowered passes, and the moves that go before them.
//
// The scheduler keeps the books (which page holds which row) and lowers each pass to a Work, in
// which everything is physical. A backend owns the bytes: weights, KV pages, frontier rows, kept
// values.
#pragma once

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
  int masks = 0;        // mask rows that it has inputs for
  int prompt_rows = 0;  // rows that mask rows see before the context
  int source = 0;       // width of the hidden rows that it projects; 0: none
  // Of a projector: which model's rows, after how many layers, and how a row becomes an input.
  std::string source_fingerprint;
  int layer = 0;
  bool replace = false;
  bool foreign = false;  // the prompt's ids are the other model's
  bool aligned = false;  // each model has its own, and rows are aligned by the text
};

// What the scheduler and the methods must know of a loaded model.
struct ModelShape {
  std::string name;
  std::string architecture;
  std::string dtype;
  int vocab_size = 0;  // ids that may be fed and drawn: [0, vocab_size)
  int layers = 0;      // of this model's cache
  int hidden_size = 0;
  int max_positions = 0;  // rows a sequence may have
  int window = 0;         // sliding window in rows, the row itself included; 0: none
  // An encoder: its passes see all of their rows (See::kAll), and are never divided. What it leaves
  // in its cache are the keys and values that another model's rows read as their memory.
  bool encodes = false;
  int depth = 0;              // of an encoder: its own layers
  bool reads_memory = false;  // such another model: each of its passes names a memory
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  int64_t page_bytes = 0;  // one KV page, all layers
  int64_t frontier_page_bytes = 0;
  // A row's bits depend on neither its neighbours nor their number: several rows in a pass give
  // what each alone gives. Else two nearly equal logits may change places.
  bool batch_invariant = false;
  std::string fingerprint;       // what tells its weights from others; empty: not known
  std::vector<HeadShape> heads;  // beside its own
  std::vector<AdapterShape> adapters;
};

class TokenHistory;  // token_history.h

// Sizes of a model's pools, in pages of `page_rows` rows.
struct PoolSize {
  int page_rows = 16;
  int64_t pages = 0;           // KV: a page holds its rows for all layers
  int64_t frontier_pages = 0;  // hidden states of rows between two layers
  int64_t values = 0;          // hidden rows that passes leave for others
  // Rows that have done all layers leave their hidden states, before the last norm, in frontier
  // pages too, until their sequence's next round: for caches of deeper models that take them over.
  bool retains_top_hidden = false;
};

enum class Store : uint8_t {
  kKv,
  kFrontier,
  kValue,  // hidden rows that passes leave for others; a page holds one
};

// Bytes that change place before the batch's forward, one after the other in the given order.
struct Move {
  enum Kind : uint8_t {
    kCopy,  // `rows` consecutive slots, layers [0, layers) where store is kKv
    kFree,  // page from.page has no owner any more; nothing to do but for backends that check
  };
  struct Place {
    ModelId model;  // may be another device's for `from`
    PageId page;
    int slot = 0;
  };
  Kind kind = kCopy;  // of kValue there are only kFree
  Store store = Store::kKv;
  Place from, to;
  int rows = 1;  // from.slot + rows and to.slot + rows stay within their pages
  int layers = 0;
};

// A pass, or a chunk of the chain prefix of one, made physical. Let n = past + frontier.size() be
// the rows that the cache holds before. Cache row r lies in slot r % page_rows of page
// pages[r / page_rows]; added row i becomes cache row n + i for the time of this pass.
//
// Rows run, in this order ("run rows"): the frontier rows past .. n-1, then the added rows
// first .. first + count - 1. Run row j has done layers [0, from(j)) already, and runs [from(j),
// to).
struct Work {
  const Pass* pass = nullptr;
  TicketId ticket = 0;    // names this pass's picks and kept distributions
  RequestId request = 0;  // the sequence that it is for
  ModelId model;
  CacheId cache;              // whose pages these are
  int to = 0;                 // layers to run: [.., to)
  int first = 0;              // first added row of this chunk
  int count = 0;              // added rows in this chunk
  int past = 0;               // cache rows [0, past) have all `to` layers and are not run
  std::vector<int> frontier;  // layers done by cache rows past .. n-1: not increasing, each < to
  // Page table for rows [0, n + count): the cache's own, which stays as it is until the batch is
  // done, while pages for later rows may come behind it.
  std::span<const PageId> pages;
  std::vector<PageId> frontier_pages;  // by r / page_rows; invalid where no frontier row lies
  // Store the hidden states of all run rows, at `to`, in frontier_pages: with `to` < the model's
  // layers, where they stay behind as frontier rows, and in pools that keep the top layer's.
  bool save_frontier = false;
  CacheId memory;        // cross-attention; invalid: none
  ModelId memory_model;  // in whose pool the pages of `memory` lie
  std::vector<PageId> memory_pages;
  int memory_rows = 0;
  bool last = true;  // the chunk that ends the pass

  // For outputs whose processors count tokens (Processors::counts_tokens()); else null and empty.
  // `history` is the tokens of cache rows [history_begin, n), which covers all rows that
  // `token_history` does not know. -1: a kChosen input, listed by row in `history_chosen`
  // (ascending); -2: no token (a mask).
  std::shared_ptr<TokenHistory> token_history;
  int history_begin = 0;
  std::vector<Token> history;
  std::vector<std::pair<int, In>> history_chosen;

  // Where the kEmbed inputs of this chunk lie: in the pool of whichever model made them, on any
  // device, complete when the work runs.
  struct Embed {
    int row = 0;  // added row
    ModelId model;
    PageId value;
  };
  std::vector<Embed> embeds;

  // Outputs that this chunk owes, in the order of Pass::read and its rows: which read, which of its
  // rows, and the run row it is. Reads that judge or keep are never split over chunks.
  struct Output {
    int read = 0;
    int index = 0;    // into Read::rows
    int run_row = 0;  // into the run rows above
    int out = 0;      // into the whole pass's Readout::row
    PageId value;     // where a `hidden` read's row goes; its answer stays empty
  };
  std::vector<Output> outputs;

  int frontier_rows() const { return static_cast<int>(frontier.size()); }
  int rows_before() const { return past + frontier_rows(); }
  int run_rows() const { return frontier_rows() + count; }
};

struct Batch {
  // Launched while the batch before it was under way. Where that one ends with RESOURCE_EXHAUSTED,
  // this one does too, for its works may follow on those that have not run.
  bool behind = false;
  std::vector<Move> moves;
  std::vector<Work> works;       // of one model; empty for moves alone
  std::vector<TicketId> forget;  // picks and kept distributions that nobody can name any more

  int run_rows() const {
    int n = 0;
    for (const Work& w : works) n += w.run_rows();
    return n;
  }
};

// What one Work answers: Readout::row has one entry per Work::outputs, in that order.
struct WorkResult {
  absl::Status status;  // of this work alone: NaN rows, a bad reference
  Readout readout;
};

struct BatchResult {
  // UNAVAILABLE: the device is lost. RESOURCE_EXHAUSTED: the moves are made and no work has run; it
  // is tried again in smaller batches. Anything else: the batch's works have failed.
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
// What a work finds of the batches before it, it finds when it runs, not when it is launched: rows,
// picks and distributions of passes that were under way then. Where such a pass has failed, its
// rows may be missing and its values are not there; a work fed by them fails too, and one that sees
// the rows may answer anything, but harms no other cache.
class Backend {
 public:
  using Done = std::function<void(BatchResult)>;

  virtual ~Backend() = default;  // after the last batch is done
  virtual const ModelShape& shape(ModelId model) const = 0;
  virtual const PoolSize& pool(ModelId model) const = 0;
  virtual void launch(const Batch& batch, Done done) = 0;
};

}  // namespace tandem
