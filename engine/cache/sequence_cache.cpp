#include "engine/cache/sequence_cache.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/mutation.h"
#include "engine/pass/token_history.h"

namespace tandem {
namespace {

bool is_chain(std::span<const Row> parent) {
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] != static_cast<Row>(i) - 1) return false;
  }
  return true;
}

// The number of rows up to and including the first one without exactly one child.
size_t unbranched_prefix(std::span<const Row> parent) {
  std::vector<int> children(parent.size() + 1, 0);  // [0]: of the past
  for (const Row p : parent) ++children[static_cast<size_t>(p + 1)];
  size_t n = 0;
  while (n < parent.size() && parent[n] == static_cast<Row>(n) - 1 && children[n] == 1) ++n;
  return n;
}

}  // namespace

int SequenceCache::rows(int to) const {
  if (to >= pools_->layers) return full_;
  int n = full_;
  for (const int done : frontier_) {
    if (done < to) break;
    ++n;
  }
  return n;
}

std::vector<int> SequenceCache::frontier_from(int to) const {
  const auto begin = frontier_.begin() + (rows(to) - full_);
  return {begin, frontier_.end()};
}

std::vector<PageId> SequenceCache::shared_pages(int total) const {
  std::vector<PageId> shared;
  for_shared(total, [&](size_t page) {
    if (!is_borrowed(page)) shared.push_back(pages_[page]);
  });
  return shared;
}

PageNeed SequenceCache::need(int total, int to, int frontier) const {
  PageNeed n;
  const int pages = page_count(total);
  n.kv = std::max(0, pages - static_cast<int>(pages_.size()));
  for_shared(total, [&](size_t) { ++n.kv; });
  if (pools_->retains_hidden(to)) {
    for (int p = std::max(rows(to), frontier) / pools_->page_rows; p < pages; ++p) {
      const auto i = static_cast<size_t>(p);
      if (i >= frontier_pages_.size() || !frontier_pages_[i].valid()) ++n.frontier;
    }
  }
  return n;
}

void SequenceCache::reserve(int total, int to, int frontier) {
  const int pages = page_count(total);
  for (int p = rows() / pools_->page_rows; p < std::min<int>(pages, pages_.size()); ++p) {
    const auto i = static_cast<size_t>(p);
    if (!is_shared(i) || mutated(Mutation::kWriteShared)) {
      if (pools_->kv.indexed(pages_[i])) pools_->forget_prefix(pages_[i]);
      continue;
    }
    TANDEM_CHECK(idle());  // else a device may read this entry
    const PageId copy = pools_->take_kv(client_);
    const int held = rows() - p * pools_->page_rows;
    if (held > 0) emit(Store::kKv, *pools_, pages_[i], 0, copy, 0, held, pools_->layers);
    release(Store::kKv, pages_[i]);
    pages_[i] = copy;
    if (is_borrowed(i)) borrowed_ = -1;
  }
  while (static_cast<int>(pages_.size()) < pages) add_page(pools_->take_kv(client_));
  if (pools_->retains_hidden(to)) {
    if (static_cast<int>(frontier_pages_.size()) < pages) {
      frontier_pages_.resize(static_cast<size_t>(pages));
    }
    for (int p = std::max(rows(to), frontier) / pools_->page_rows; p < pages; ++p) {
      PageId& page = frontier_pages_[static_cast<size_t>(p)];
      if (!page.valid()) page = pools_->frontier.take();
    }
  }
}

// Grows into new memory, and keeps the old table while passes may read it.
void SequenceCache::add_page(PageId page) {
  if (pages_.size() == pages_.capacity() && !idle()) {
    std::vector<PageId> larger;
    larger.reserve(2 * pages_.size() + 1);
    larger.assign(pages_.begin(), pages_.end());
    outgrown_.push_back(std::exchange(pages_, std::move(larger)));
  }
  pages_.push_back(page);
}

void SequenceCache::passes_done() {
  arriving_ = transfers_.pending() != nullptr;
  if (!idle() || arriving_) return;
  done_ = full_;
  if (!outgrown_.empty()) outgrown_.clear();
}

void SequenceCache::append(int to, const Tree& tree) {
  TANDEM_CHECK(tree_parent_.empty());
  const int past = rows(to);
  const int n = rows() + static_cast<int>(tree.size());
  TANDEM_CHECK(n <= reserved_rows());
  has_run_ = true;
  for (int p = rows() / pools_->page_rows; p < page_count(n); ++p) {
    const auto i = static_cast<size_t>(p);
    TANDEM_CHECK(pools_->kv.owners(pages_[i]) == 1 || mutated(Mutation::kWriteShared));
    TANDEM_CHECK(!pools_->retains_hidden(to) ||
                 (i < frontier_pages_.size() && frontier_pages_[i].valid()));
  }
  tree_begin_ = rows();
  for (const In& in : tree.in) {
    if (in.kind == In::kEmbed) private_ = std::min(private_, static_cast<int>(inputs_.size()));
    if (in.kind == In::kChosen) chosen_.emplace_back(static_cast<int>(inputs_.size()), in);
    inputs_.push_back(in.kind == In::kChosen ? -1 : in.kind == In::kMask ? kNoToken : in.id);
  }
  if (to >= pools_->layers) {
    full_ = n;
    frontier_.clear();  // the pass reads its pages until release_unused()
  } else {
    frontier_.resize(static_cast<size_t>(past - full_));
    frontier_.resize(static_cast<size_t>(n - full_), to);
  }
  if (!is_chain(tree.parent)) tree_parent_ = tree.parent;
}

void SequenceCache::append_private(int to, const Tree& tree) {
  private_ = std::min(private_, rows(to));  // continued rows depend on it too
  append(to, tree);
}

void SequenceCache::retain(std::span<const Row> path) {
  std::vector<Row> other;  // by a mutation
  if (mutated(Mutation::kWrongPath)) {
    for (size_t i = 0; i < path.size(); ++i) other.push_back(static_cast<Row>(i));
    path = other;
  }
  if (mutated(Mutation::kKeepLastRow) && !tree_parent_.empty() && !path.empty()) {
    other.assign(path.begin(), path.end());
    other.back() = static_cast<Row>(rows() - 1 - tree_begin_);
    path = other;
  }
  tree_parent_.clear();
  if (private_ != kNone && private_ > tree_begin_) {
    const auto at = std::lower_bound(path.begin(), path.end(), private_ - tree_begin_);
    private_ = tree_begin_ + static_cast<int>(at - path.begin());
  }
  std::vector<std::pair<int, In>> chosen;  // of retained rows, by their new numbers
  for (auto& [row, in] : chosen_) {
    if (row < tree_begin_) {
      chosen.emplace_back(row, in);
      continue;
    }
    const auto at = std::lower_bound(path.begin(), path.end(), row - tree_begin_);
    if (at == path.end() || *at != row - tree_begin_) continue;
    chosen.emplace_back(tree_begin_ + static_cast<int>(at - path.begin()), in);
  }
  chosen_ = std::move(chosen);
  size_t unmoved = 0;
  while (unmoved < path.size() && path[unmoved] == static_cast<Row>(unmoved)) ++unmoved;
  cut_history(tree_begin_ + static_cast<int>(unmoved));
  for (size_t i = 0; i < path.size(); ++i) {
    TANDEM_CHECK(path[i] >= static_cast<Row>(i) && tree_begin_ + path[i] < rows());
    TANDEM_CHECK(i == 0 || path[i] > path[i - 1]);
    move_row(tree_begin_ + path[i], tree_begin_ + static_cast<int>(i));
    inputs_[static_cast<size_t>(tree_begin_) + i] =
        inputs_[static_cast<size_t>(tree_begin_ + path[i])];
  }
  truncate(tree_begin_ + static_cast<int>(path.size()));
}

void SequenceCache::commit_branches() {
  const auto stay = static_cast<int>(unbranched_prefix(tree_parent_));
  tree_parent_.clear();
  truncate(tree_begin_ + stay);
}

void SequenceCache::truncate(int at_most) {
  commit_tree();
  if (at_most >= rows() || mutated(Mutation::kSkipTruncate)) return;
  if (at_most <= full_) {
    full_ = std::max(0, at_most);
    frontier_.clear();
  } else {
    frontier_.resize(static_cast<size_t>(at_most - full_));
  }
  cut_inputs(rows());
}

void SequenceCache::resolve_chosen(std::span<const Token> tokens) {
  size_t known = 0;
  for (; known < chosen_.size(); ++known) {
    const auto row = static_cast<size_t>(chosen_[known].first);
    if (row >= tokens.size()) break;
    inputs_[row] = tokens[row];
  }
  chosen_.erase(chosen_.begin(), chosen_.begin() + static_cast<ptrdiff_t>(known));
}

void SequenceCache::cut_inputs(int rows) {
  if (mutated(Mutation::kCountRejected) && rows > 0) return;
  inputs_.resize(static_cast<size_t>(rows));
  cut_history(rows);
  done_ = std::min(done_, full_);
  top_from_ = std::min(top_from_, full_);
  published_ = std::min(published_, full_ / pools_->page_rows);
  if (private_ >= rows) private_ = kNone;
  while (!chosen_.empty() && chosen_.back().first >= rows) chosen_.pop_back();
}

const std::shared_ptr<TokenHistory>& SequenceCache::token_history() {
  if (!history_) history_ = std::make_shared<TokenHistory>();
  return history_;
}

// With a pass under way the device may be using the history: later passes then start a new one.
void SequenceCache::cut_history(int rows) {
  if (!history_) return;
  if (idle()) {
    history_->truncate(rows);
  } else {
    history_.reset();
  }
}

void SequenceCache::shrink_pages() {
  const auto pages = static_cast<size_t>(page_count(rows()));
  if (borrowed_ >= static_cast<int>(pages)) borrowed_ = -1;
  while (pages_.size() > pages) {
    if (!mutated(Mutation::kLeakOnTruncate) || pages_.size() > pages + 1)
      release(Store::kKv, pages_.back());
    pages_.pop_back();
  }
  if (!frontier_pages_.empty()) shrink_frontier();
}

void SequenceCache::shrink_frontier() {
  const auto pages = static_cast<size_t>(page_count(rows()));
  for (size_t p = 0; p < frontier_pages_.size(); ++p) {
    const int end = static_cast<int>(p + 1) * pools_->page_rows;
    const bool used = p < pages && end > full_ && !frontier_.empty();
    if (!used && frontier_pages_[p].valid()) {
      release(Store::kFrontier, frontier_pages_[p]);
      frontier_pages_[p] = PageId();
    }
  }
  if (frontier_pages_.size() > pages) frontier_pages_.resize(pages);
}

void SequenceCache::reserve_values(int n) {
  for (int i = 0; i < n; ++i) values_.push_back(pools_->values.take());
}

PageId SequenceCache::take_value() {
  TANDEM_CHECK(taken_values_ < values_.size());
  return values_[taken_values_++];
}

void SequenceCache::release_all_values() {
  for (const PageId value : values_) release(Store::kValue, value);
  values_.clear();
  taken_values_ = 0;
}

void SequenceCache::clear() {
  release_values();
  tree_parent_.clear();
  transfers_.clear();  // rows under way arrive in pinned pages
  full_ = 0;
  frontier_.clear();
  cut_inputs(0);
  shrink_pages();
}

void SequenceCache::fork_from(SequenceCache& other, int at_most) {
  TANDEM_CHECK(rows() == 0 && pages_.empty() && pools_ == other.pools_);
  if (at_most > other.done_) other.commit_tree();
  // Frontier rows are not shared: recomputing them is cheap.
  transfers_.fork_from(other.transfers_);
  full_ = top_from_ = std::min(other.full_, at_most);
  done_ = std::min(other.done_, full_);
  private_ = other.private_;
  published_ = other.published_;
  inputs_ = other.inputs_;
  chosen_ = other.chosen_;
  if (other.history_ && other.idle()) history_ = std::make_shared<TokenHistory>(*other.history_);
  cut_inputs(full_);
  const auto pages = static_cast<size_t>(page_count(full_));
  pages_.assign(other.pages_.begin(), other.pages_.begin() + static_cast<ptrdiff_t>(pages));
  for (const PageId page : pages_) pools_->kv.share(page);
}

void SequenceCache::publish(const PrefixRoot& root, std::span<const Token> tokens) {
  if (!pools_->prefix_cache) return;
  commit_tree();
  if (arriving_) passes_done();
  const auto page_rows = static_cast<size_t>(pools_->page_rows);
  const auto pages =
      static_cast<int>(std::min(static_cast<size_t>(reusable()), tokens.size()) / page_rows);
  const auto page = [this](int i) -> PageId& { return pages_[static_cast<size_t>(i)]; };
  if (published_ > 0 && !pools_->prefixes.knows(page(published_ - 1))) published_ = 0;
  size_t shared = 0;  // leading pages with equal pages of another sequence in the index
  for (; published_ < pages; ++published_) {
    const auto begin = static_cast<size_t>(published_) * page_rows;
    const auto rows = tokens.subspan(begin, page_rows);
    if (!std::ranges::equal(rows, inputs().subspan(begin, page_rows))) break;
    PageId& mine = page(published_);
    if (pools_->prefixes.knows(mine)) continue;  // shared with a fork that published it
    const PageId before = published_ > 0 ? page(published_ - 1) : PageId();
    const PageId known = pools_->prefixes.insert(root, before, rows, mine, writer_);
    TANDEM_CHECK(known.valid());
    if (known == mine) continue;
    pools_->kv.share(known);
    release(Store::kKv, mine);
    mine = known;
    shared = static_cast<size_t>(published_) + 1;
  }
  if (shared > 0) pools_->prefixes.use(std::span(pages_).first(shared));
}

int SequenceCache::adopt(const PrefixRoot& root, std::span<const Token> tokens, int at_most) {
  TANDEM_CHECK(rows() == 0 && pages_.empty());
  if (!pools_->prefix_cache || at_most < pools_->page_rows) return 0;
  pages_ = pools_->prefixes.find(root, tokens, static_cast<size_t>(at_most / pools_->page_rows));
  for (const PageId page : pages_) pools_->kv.share(page);
  // After preemption the pages may be its own.
  if (!has_run_) pools_->prefixes.use(pages_);
  full_ = done_ = top_from_ = static_cast<int>(pages_.size()) * pools_->page_rows;
  published_ = static_cast<int>(pages_.size());
  inputs_.assign(tokens.begin(), tokens.begin() + full_);
  return full_;
}

int SequenceCache::borrow(const PrefixRoot& root, std::span<const Token> tokens, int at_most) {
  TANDEM_CHECK(rows() == static_cast<int>(pages_.size()) * pools_->page_rows);
  if (!pools_->prefix_cache || at_most <= full_) return 0;
  const PageId last = pages_.empty() ? PageId() : pages_.back();
  const auto rest =
      tokens.subspan(static_cast<size_t>(full_), static_cast<size_t>(at_most - full_));
  const auto [page, n] = pools_->prefixes.find_beginning(root, last, rest, writer_);
  if (n == 0) return 0;
  borrowed_ = static_cast<int>(pages_.size());
  pages_.push_back(page);
  pools_->kv.share(page);
  full_ = done_ = top_from_ = full_ + n;
  inputs_.assign(tokens.begin(), tokens.begin() + full_);
  return n;
}

int SequenceCache::return_borrowed() {
  if (borrowed_ < 0) return 0;
  const int before = rows();
  truncate(borrowed_ * pools_->page_rows);
  done_ = top_from_ = full_;
  shrink_pages();
  return before - full_;
}

void SequenceCache::copy_from(SequenceCache& other, int begin, int end,
                              const std::shared_ptr<Transfer>& transfer) {
  TANDEM_CHECK(rows() == begin && end <= other.rows() && end <= reserved_rows());
  TANDEM_CHECK(pools_->page_rows == other.pools_->page_rows);
  const int layers = std::min(pools_->layers, other.pools_->layers);
  if (transfer) {
    transfers_.add_incoming(transfer);
    other.transfers_.add_outgoing(transfer, end, layers);
  }
  const int page_rows = pools_->page_rows;
  for (int row = begin; row < end;) {
    const int slot = row % page_rows;
    const int n = std::min(end - row, page_rows - slot);
    const auto page = static_cast<size_t>(row / page_rows);
    TANDEM_CHECK(pools_->kv.owners(pages_[page]) == 1);
    emit(Store::kKv, *other.pools_, other.pages_[page], slot, pages_[page], slot, n, layers);
    for (int r = row; r < row + n; ++r) copy_state(other, r);
    row += n;
  }
  for (int row = begin; row < end; ++row)
    inputs_.push_back(other.inputs_[static_cast<size_t>(row)]);
  for (const auto& [row, in] : other.chosen_) {
    if (row >= begin && row < end) chosen_.emplace_back(row, in);
  }
  if (other.private_ < end) private_ = std::min(private_, std::max(begin, other.private_));
  top_from_ = full_;
  passes_done();
}

// Row `row` of `other` becomes the next row here. A row that continues here brings its hidden
// state.
void SequenceCache::copy_state(const SequenceCache& other, int row) {
  const bool other_full = row < other.full_;
  const int done =
      other_full ? other.pools_->layers : other.frontier_[static_cast<size_t>(row - other.full_)];
  if (done >= pools_->layers) {
    TANDEM_CHECK(frontier_.empty());
    ++full_;
    return;
  }
  const auto page = static_cast<size_t>(row / pools_->page_rows);
  TANDEM_CHECK(!other_full || (other.pools_->retains_top_hidden && row >= other.top_from_));
  TANDEM_CHECK(page < other.frontier_pages_.size() && page < frontier_pages_.size() &&
               frontier_pages_[page].valid());
  TANDEM_CHECK(frontier_.empty() || done <= frontier_.back());
  frontier_.push_back(done);
  const int slot = row % pools_->page_rows;
  emit(Store::kFrontier, *other.pools_, other.frontier_pages_[page], slot, frontier_pages_[page],
       slot, 1, 0);
}

void SequenceCache::move_row(int from, int to) {
  if (from == to) return;
  const int page_rows = pools_->page_rows;
  const auto from_page = static_cast<size_t>(from / page_rows);
  const auto to_page = static_cast<size_t>(to / page_rows);
  emit(Store::kKv, *pools_, pages_[from_page], from % page_rows, pages_[to_page], to % page_rows, 1,
       pools_->layers);
  const bool has_top =
      pools_->retains_top_hidden && to >= top_from_ && !mutated(Mutation::kLeaveTopBehind);
  if (from < full_ && !has_top) return;
  if (from >= full_) {
    TANDEM_CHECK(to >= full_);
    frontier_[static_cast<size_t>(to - full_)] = frontier_[static_cast<size_t>(from - full_)];
  }
  emit(Store::kFrontier, *pools_, frontier_pages_[from_page], from % page_rows,
       frontier_pages_[to_page], to % page_rows, 1, 0);
}

void SequenceCache::emit(Store store, const ModelPools& source, PageId from, int from_slot,
                         PageId to, int to_slot, int rows, int layers) {
  Move move;
  move.store = store;
  move.from = {source.model, from, from_slot};
  move.to = {pools_->model, to, to_slot};
  move.rows = rows;
  move.layers = layers;
  if (Transfer* const transfer = transfers_.pending()) {
    transfer->add(move);
  } else {
    pools_->moves->push_back(move);
  }
}

}  // namespace tandem
