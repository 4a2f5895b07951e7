// A sequence's cache: rows x layers, with a row count for each cut between layers.
//
// Rows 0 .. n-1 lie consecutively in pages. Each row has done some number of layers, and that
// number never increases with the row. Rows that stopped early (the frontier) are therefore the
// last ones; frontier pages hold their hidden states until a pass continues them. This class tracks
// pages and rows, and appends the required moves to a log. The device's next batch carries the log,
// so moves run in the order in which they were requested.
//
// Bookkeeping is ahead of the device: a submitted pass counts at once. retain, truncate, clear and
// release_unused require that all passes on the cache are done (idle()). Devices read the page
// table in place, so it only grows while passes are under way, and entries that they may read do
// not move.
//
// Full pages can be published: the pools' prefix index then shares them with caches that begin with
// the same tokens. A page with another owner is never written: reserve() copies it first, or takes
// it out of the index if that is the only other owner. A borrowed page shares its first rows only,
// and reserve() always copies it.
//
// Rows from a cache on another device arrive later (transfer.h). Passes that read them wait for the
// transfer, and so do passes that would overwrite rows that a transfer still reads.
//
// Not thread-safe: on the loop only.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/mutation.h"
#include "engine/cache/cache_transfers.h"
#include "engine/cache/model_pools.h"
#include "engine/cache/pass_order.h"
#include "engine/pass/backend.h"
#include "engine/pass/pass.h"

namespace tandem {

// Pages that a reservation takes from a model's pools.
struct PageNeed {
  int64_t kv = 0;
  int64_t frontier = 0;
  int64_t values = 0;
};

class SequenceCache {
 public:
  // `client`: the salt of its prefixes, whose cached pages are evicted first (PagePool). `writer`:
  // see PrefixIndex::find_beginning().
  SequenceCache(CacheId id, ModelPools* pools, std::string client = "", std::string writer = "")
      : id_(id), pools_(pools), client_(std::move(client)), writer_(std::move(writer)) {}
  ~SequenceCache() { clear(); }
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  CacheId id() const { return id_; }
  ModelId model() const { return pools_->model; }
  ModelPools* pools() const { return pools_; }
  const std::string& client() const { return client_; }

  int rows() const { return full_ + static_cast<int>(frontier_.size()); }
  int rows(int to) const;  // rows that have done layers [0, to)
  // Layers done by rows from rows(to) on, as in Work::frontier.
  std::vector<int> frontier_from(int to) const;

  // Pages. Capacity for `total` rows; where passes stop at `to` < layers, also for the hidden
  // states of rows from `frontier` on. need() counts the pages, reserve() takes them. REQUIRES for
  // reserve: the pools have them.
  PageNeed need(int total, int to, int frontier = 0) const;
  void reserve(int total, int to, int frontier = 0);
  // Valid until release_unused() or clear(): retain and truncate drop rows, not pages.
  int reserved_rows() const { return static_cast<int>(pages_.size()) * pools_->page_rows; }
  // Releases pages after the last row, and frontier pages whose rows have continued. An uncommitted
  // tree keeps its pages. REQUIRES: idle().
  void release_unused() {
    if (!tree_parent_.empty()) return;
    top_from_ = full_;
    shrink_pages();
  }
  void clear();  // releases all pages
  // Pages with other owners that reserve(total, ..) would copy.
  std::vector<PageId> shared_pages(int total) const;
  // Valid while a pass is under way, then until the cache changes.
  std::span<const PageId> pages() const { return pages_; }
  std::span<const PageId> frontier_pages() const { return frontier_pages_; }

  // Passes. Counts the rows of a pass to `to` that adds `tree`. REQUIRES: reserved, and not forked
  // since (a page with two owners is not written).
  void append(int to, const Tree& tree);
  // The same for rows that depend on more than their tokens (an encoder's, or readers of a memory).
  // Neither they nor later rows are published.
  void append_private(int to, const Tree& tree);
  // See PassOrder.
  int begin_pass() { return order_.begin_pass(); }
  int begin_reader() { return order_.begin_reader(); }
  bool all_done_before(int pass) const { return order_.all_done_before(pass); }
  bool all_launched_before(int pass) const { return order_.all_launched_before(pass); }
  void launch_pass() { order_.launch_pass(); }
  void take_back_pass() { order_.take_back_pass(); }
  void end_pass() { order_.end_pass(), passes_done(); }
  void end_reader() { order_.end_reader(), passes_done(); }
  bool idle() const { return order_.idle(); }  // no pass is under way
  // If the cache is idle and no rows are arriving, all its rows are in memory.
  void passes_done();
  // May a pass run now that continues rows past, past + 1, ..., which have done `frontier` layers,
  // stores their hidden states if it `saves` them, and adds rows after them?
  bool transfers_allow(int past, std::span<const int> frontier, bool saves) const {
    return transfers_.allow(past, frontier, saves);
  }

  // Rows. Commits the last appended tree: rows in `path` (ascending) stay and become consecutive,
  // the others are dropped. REQUIRES: path is a prefix of the tree's rows up to its first branch,
  // or begins with all of these.
  void retain(std::span<const Row> path);
  // Commits a tree without a path: rows up to and including the first branch stay.
  void commit_tree() {
    if (!tree_parent_.empty()) commit_branches();
  }
  void truncate(int at_most);

  // Other caches. Shares `at_most` of another cache's rows that have done all layers; pages are
  // copied when one side writes them. REQUIRES: empty; same pools; other's tree is committed, or
  // the rows are of passes that are done.
  void fork_from(SequenceCache& other, int at_most = std::numeric_limits<int>::max());
  // Copies rows [begin, end) with their layers [0, layers of both) from a cache of another device
  // or depth. A row that has done less than this cache's layers becomes a frontier row and needs
  // its hidden state. Full rows of a shallower cache have one if they were added in this round and
  // PoolSize::retains_top_hidden. The moves go with `transfer`, or to the log if it is null.
  // REQUIRES: committed, idle, reserved, rows() == begin, equal page sizes.
  void copy_from(SequenceCache& other, int begin, int end,
                 const std::shared_ptr<Transfer>& transfer = nullptr);

  // Prefixes. Publishes the full pages whose inputs were `tokens` (the sequence's final tokens,
  // from the first), have done all layers and are in memory. If another page with the same rows is
  // indexed, this cache uses that one. REQUIRES: idle, or the cache is not used again.
  void publish(const PrefixRoot& root, std::span<const Token> tokens);
  // False: publish() with `tokens` tokens would change nothing.
  bool can_publish(size_t tokens) const {
    if (!pools_->prefix_cache) return false;
    const auto page_rows = static_cast<size_t>(pools_->page_rows);
    const auto published = static_cast<size_t>(published_);
    const size_t known = std::min(static_cast<size_t>(reusable()), tokens);
    return (published + 1) * page_rows <= known || arriving_ || !tree_parent_.empty() ||
           (published > 0 && !pools_->prefixes.knows(pages_[published - 1]));
  }
  // Shares the longest indexed prefix of `tokens`, in whole pages of at most `at_most` rows.
  // Returns its rows. REQUIRES: empty, nothing reserved.
  int adopt(const PrefixRoot& root, std::span<const Token> tokens, int at_most);
  // After adopt(), which takes whole pages: also shares the first rows of an indexed page of the
  // same writer that continues `tokens` the longest, up to row `at_most`. The next reserve() copies
  // them. Returns their number.
  int borrow(const PrefixRoot& root, std::span<const Token> tokens, int at_most);
  // Undoes borrow(), if reserve() was not called since. Returns the number of rows.
  int return_borrowed();
  // Leading rows that are in memory with all layers and depend only on their tokens.
  int reusable() const {
    return std::min(mutated(Mutation::kKeepFailedRows) ? full_ : done_, private_);
  }

  // Places for hidden rows that passes leave (Read::hidden). They are reserved for a round, taken
  // one by one, and released together when no later pass may name them.
  void reserve_values(int n);
  PageId take_value();
  void release_values() {
    if (!values_.empty() && !mutated(Mutation::kKeepValueRows)) release_all_values();
  }
  std::span<const PageId> values() const { return values_; }

  // The input token of each row. -1: a kChosen input, see chosen(); kNoToken: a mask.
  std::span<const Token> inputs() const { return inputs_; }
  // Rows whose token only the device knows, ascending, with their inputs.
  std::span<const std::pair<int, In>> chosen() const { return chosen_; }
  // `tokens` are the sequence's first tokens: fills in the inputs of chosen rows among them.
  void resolve_inputs(std::span<const Token> tokens) {
    if (!chosen_.empty()) resolve_chosen(tokens);
  }
  // Token counts of the rows, for passes with penalties. Made at the first call; a device updates
  // it while it runs works of this cache.
  const std::shared_ptr<TokenHistory>& token_history();

 private:
  int page_count(int rows) const { return (rows + pools_->page_rows - 1) / pools_->page_rows; }
  bool is_borrowed(size_t page) const { return static_cast<int>(page) == borrowed_; }
  bool is_shared(size_t page) const {
    return pools_->kv.users(pages_[page]) > 1 || is_borrowed(page);
  }
  // Calls f with the index of each page that rows before `total` write and that has other owners.
  template <class F>
  void for_shared(int total, F f) const {
    const int end = std::min(page_count(total), static_cast<int>(pages_.size()));
    for (int p = rows() / pools_->page_rows; p < end; ++p) {
      if (is_shared(static_cast<size_t>(p))) f(static_cast<size_t>(p));
    }
  }
  void add_page(PageId page);
  void commit_branches();
  void resolve_chosen(std::span<const Token> tokens);
  void release_all_values();
  void shrink_pages();
  void shrink_frontier();
  void release(Store store, PageId page) { pools_->release(store, page); }
  void move_row(int from, int to);
  void cut_inputs(int rows);
  void cut_history(int rows);
  void copy_state(const SequenceCache& other, int row);
  void emit(Store store, const ModelPools& source, PageId from, int from_slot, PageId to,
            int to_slot, int rows, int layers);

  static constexpr int kNone = std::numeric_limits<int>::max();

  const CacheId id_;
  ModelPools* const pools_;
  const std::string client_, writer_;
  int full_ = 0;               // rows that have done all layers
  int done_ = 0;               // of these, rows whose passes are done
  int private_ = kNone;        // the first row that depends on more than tokens
  bool has_run_ = false;       // passes, before clear() too
  int published_ = 0;          // leading pages that the index has, unless it evicted them
  int borrowed_ = -1;          // the page of borrow(); -1: none
  std::vector<int> frontier_;  // by row from full_ on: layers done
  std::vector<Token> inputs_;  // by row
  std::vector<std::pair<int, In>> chosen_;
  std::shared_ptr<TokenHistory> history_;  // null until a pass counts tokens
  std::vector<PageId> pages_;
  std::vector<std::vector<PageId>> outgrown_;  // former pages_, which passes may still read
  std::vector<PageId> frontier_pages_;         // by row / page_rows; invalid: none needed
  PassOrder order_;
  CacheTransfers transfers_;
  bool arriving_ = false;  // rows were still arriving when the last pass was done
  int top_from_ = 0;       // full rows from here on have their hidden state in frontier pages
  std::vector<PageId> values_;
  size_t taken_values_ = 0;  // of these
  // The last appended pass, if it is an uncommitted tree.
  int tree_begin_ = 0;
  std::vector<Row> tree_parent_;
};

}  // namespace tandem
