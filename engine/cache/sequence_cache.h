// A sequence's cache: rows x layers, with a row count for each cut between layers.
//
// Rows 0 .. n-1 lie one after the other in pages. Every row has done some number of layers; that
// number never rises with the row, so rows that stopped early (the frontier) are the last ones, and
// their hidden states lie in frontier pages until a pass continues them. This class keeps the books
// and says which bytes must move; the moves go to a log that the device's next batch carries, so
// they happen in the order in which they were asked for.
//
// The books run ahead of the bytes: a submitted pass counts at once. keep, truncate, clear and
// release_unused want every pass on this cache to be done (idle()). Devices read the page table
// where it lies: while passes are under way it only grows, and what they may look at does not move.
//
// Full pages can be published: the pools' prefix index then owns them too, and caches with the same
// beginning adopt them. A page that anyone else owns is never written: reserve() copies it first,
// or takes it back from the index where that is the only other owner.
//
// Rows that come from a cache of another device are on their way for a while (transfer.h). Passes
// here wait until they are in the log, and passes there that would write over what is to be read
// wait until they are made.
//
// Not thread-safe: on the loop only.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/mutation.h"
#include "engine/cache/model_pools.h"
#include "engine/cache/transfer.h"
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
  SequenceCache(CacheId id, ModelPools* pools) : id_(id), pools_(pools) {}
  ~SequenceCache() { clear(); }
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  CacheId id() const { return id_; }
  ModelId model() const { return pools_->model; }
  ModelPools* pools() const { return pools_; }

  int rows() const { return full_ + static_cast<int>(frontier_.size()); }
  int rows(int to) const;  // rows that have done layers [0, to)
  // Layers done by the rows from rows(to) on: what Work::frontier wants.
  std::vector<int> frontier_from(int to) const;

  // Room for `total` rows, and where passes stop at `to` < layers also for the hidden states of
  // those from row `frontier` on. need() tells what it would take, reserve() takes it. REQUIRES for
  // reserve: the pools have it.
  PageNeed need(int total, int to, int frontier = 0) const;
  void reserve(int total, int to, int frontier = 0);
  // Room until release_unused() or clear(): keep and truncate drop rows, not pages.
  int reserved_rows() const { return static_cast<int>(pages_.size()) * pools_->page_rows; }

  // Books a pass to `to` that adds `tree`: its rows are there from here on. REQUIRES: reserved, and
  // not forked since (a page that two caches own is not written).
  void append(int to, const Tree& tree);
  // The same for a pass whose rows depend on more than their tokens (all rows see each other, or a
  // memory): neither they nor rows behind them are published.
  void append_private(int to, const Tree& tree);
  // Passes on a cache run one after the other, on one device. Each has a number, and its turn comes
  // when those before it are done, or launched, which is as good on the device they went to; one
  // that reads these rows as its memory waits for them likewise.
  int begin_pass() { return begun_++; }
  int begin_reader() { return ++readers_, begun_; }
  bool all_done_before(int pass) const { return ended_ >= pass; }
  bool all_launched_before(int pass) const { return launched_ >= pass; }
  void launch_pass() { ++launched_; }     // the next one, to its last row
  void take_back_pass() { --launched_; }  // the last one that was launched: it has not run
  void end_pass() { ++ended_, passes_done(); }
  void end_reader() { --readers_, passes_done(); }
  bool idle() const { return ended_ == begun_ && readers_ == 0; }
  // If no pass is under way, all that was appended is in memory.
  void passes_done();
  // Settles the last appended tree: of its rows those in `path` (ascending) stay and move together;
  // the others go. REQUIRES: path starts with the tree's rows up to its first branch or is a
  // prefix.
  void keep(std::span<const Row> path);
  // What happens to a tree that nobody settles: the rows up to and with the first branch stay.
  void settle();
  void truncate(int at_most);
  void clear();  // gives all pages back
  // Gives back pages behind the last row, and frontier pages whose rows went on. A tree that nobody
  // settled keeps its pages. REQUIRES: no pass on this cache is under way.
  void release_unused();

  // Takes over another cache's rows that have done all layers, `at_most` of them, without copying:
  // pages are shared until one side writes. REQUIRES: empty, same pools; other is settled, or only
  // rows of passes that are done are taken.
  void fork_from(SequenceCache& other, int at_most = std::numeric_limits<int>::max());
  // Copies rows [begin, end) with their layers [0, layers of both) from a cache of another device
  // or depth. A row that has done less than this cache's layers becomes a frontier row, so its
  // hidden state comes with it: of a full row of a shallower cache it must be there, see
  // PoolSize::retains_top_hidden and top_from(). The moves go with `transfer`, or to the log when
  // it is null. REQUIRES: settled, idle, room reserved, rows() == begin, equal page sizes.
  void copy_from(SequenceCache& other, int begin, int end,
                 const std::shared_ptr<Transfer>& transfer = nullptr);
  // May a pass run now that continues rows past, past + 1, ..., of which each has done `frontier`
  // layers, stores their hidden states if it `saves` them, and adds rows behind?
  bool moves_allow(int past, std::span<const int> frontier, bool saves) const {
    return (incoming_.empty() && outgoing_.empty()) || transfers_allow(past, frontier, saves);
  }
  // Rows from here on that have done all layers have their hidden states in frontier pages, where
  // the pool keeps those.
  int top_from() const { return top_from_; }

  // Makes known to others the full pages whose rows were fed `tokens` (the sequence's final ones,
  // from the first), have done all layers and are in memory. Where another page with the same rows
  // is known, this cache goes over to it. REQUIRES: no pass on this cache is under way, or the
  // cache will not be used any more.
  void publish(const PrefixRoot& root, std::span<const Token> tokens);
  // False: publish() with so many tokens would do nothing.
  bool has_news(size_t tokens) const {
    if (!pools_->prefix_cache) return false;
    const auto page_rows = static_cast<size_t>(pools_->page_rows);
    const auto published = static_cast<size_t>(published_);
    const size_t known = std::min(static_cast<size_t>(reusable()), tokens);
    return (published + 1) * page_rows <= known || late_ || !tree_parent_.empty() ||
           (published > 0 && !pools_->prefixes.knows(pages_[published - 1]));
  }
  // Takes over the longest known beginning of `tokens`, whole pages of `at_most` rows. Returns its
  // rows. REQUIRES: empty, and nothing reserved.
  int adopt(const PrefixRoot& root, std::span<const Token> tokens, int at_most);
  // Rows in memory with all layers, which follow from the tokens that were fed.
  int reusable() const {
    return std::min(mutated(Mutation::kKeepFailedRows) ? full_ : done_, private_);
  }

  // Places for hidden rows that passes leave (Read::hidden): reserved for a round, taken one by
  // one, and given back together when nobody can name them any more.
  void reserve_values(int n);
  PageId take_value();
  void release_values();
  std::span<const PageId> values() const { return values_; }

  // What each row was fed. -1: a kChosen input, see chosen(); -2: no token (a mask).
  std::span<const Token> fed() const { return fed_; }
  // The rows whose token the host does not know, ascending, with what was fed instead.
  std::span<const std::pair<int, In>> chosen() const { return chosen_; }
  // Token counts of the rows, for passes with penalties. Made at the first call; a device updates
  // it while it runs works of this cache.
  const std::shared_ptr<TokenHistory>& token_history();
  // The sequence's tokens are known up to here, so what was chosen on a device is known as well.
  void know(std::span<const Token> tokens);
  // Those of the pages that other caches own as well and that reserve(total, ..) copies.
  std::vector<PageId> shared_pages(int total) const;
  // Good until the cache is idle and changes.
  std::span<const PageId> pages() const { return pages_; }
  std::span<const PageId> frontier_pages() const { return frontier_pages_; }

 private:
  int page_count(int rows) const { return (rows + pools_->page_rows - 1) / pools_->page_rows; }
  bool is_shared(size_t page) const { return pools_->kv.users(pages_[page]) > 1; }
  // Calls f with the index of each page that rows up to `total` write and others own as well.
  template <class F>
  void for_shared(int total, F f) const {
    const int end = std::min(page_count(total), static_cast<int>(pages_.size()));
    for (int p = rows() / pools_->page_rows; p < end; ++p) {
      if (is_shared(static_cast<size_t>(p))) f(static_cast<size_t>(p));
    }
  }
  void add_page(PageId page);
  void shrink_pages();
  void shrink_frontier();
  void release(Store store, PageId page) { pools_->release(store, page); }
  void move_row(int from, int to);
  void cut_inputs(int rows);
  void cut_history(int rows);
  bool transfers_allow(int past, std::span<const int> frontier, bool saves) const;
  Transfer* on_its_way() const;
  void follow_transfers(Transfer& transfer, bool writes);
  void copy_state(const SequenceCache& other, int row);
  void emit(Store store, const ModelPools& source, PageId from, int from_slot, PageId to,
            int to_slot, int rows, int layers);

  static constexpr int kNone = std::numeric_limits<int>::max();

  const CacheId id_;
  ModelPools* const pools_;
  int full_ = 0;               // rows that have done all layers
  int done_ = 0;               // of these, those in memory for certain
  int private_ = kNone;        // the first row that does not follow from tokens alone
  int published_ = 0;          // leading pages that the index knows, unless it gave them up
  std::vector<int> frontier_;  // layers done by each row after them
  std::vector<Token> fed_;     // by row
  std::vector<std::pair<int, In>> chosen_;
  std::shared_ptr<TokenHistory> history_;  // null until a pass counts tokens
  std::vector<PageId> pages_;
  std::vector<std::vector<PageId>> outgrown_;  // what pages_ was, while passes may read it there
  std::vector<PageId> frontier_pages_;         // by row / page_rows, invalid where none is needed
  int begun_ = 0;                              // passes
  int launched_ = 0;                           // of these
  int ended_ = 0;                              // of these
  int readers_ = 0;  // passes under way that have these rows as their memory
  struct Outgoing {
    std::shared_ptr<Transfer> transfer;
    int end;     // rows before it are read
    int layers;  // up to here
  };
  std::vector<std::shared_ptr<Transfer>> incoming_;  // and perhaps over
  std::vector<Outgoing> outgoing_;                   // likewise
  bool late_ = false;                                // rows were on their way when passes were done
  int top_from_ = 0;
  std::vector<PageId> values_;
  size_t taken_values_ = 0;  // of these
  // The last appended pass while it is an unsettled tree.
  int tree_begin_ = 0;
  std::vector<Row> tree_parent_;
};

}  // namespace tandem
