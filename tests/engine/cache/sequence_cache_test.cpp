// Compares sequence caches with a model that lists the content of every row: after all operations,
// executing the logged moves leaves each row's content in its slot. A row's content depends on its
// token and all earlier ones, as keys and values do, so shared pages are checked too. A map from
// tokens to pages models the prefix index.
#include "engine/cache/sequence_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "engine/pass/token_history.h"

namespace tandem {
namespace {

constexpr int kLayers = 5;
constexpr int kRowsOfAPage = 4;
constexpr int kPages = 18;
using Tokens = std::vector<Token>;

// The content of a row: an identity, and the layers done.
struct Content {
  uint64_t id = 0;
  int layers = 0;
  Token token = 0;
};

uint64_t id_of(uint64_t parent, Token token) {
  return PrefixIndex::hash(parent, std::span<const Token>(&token, 1)) | 1;
}

struct World {
  static ModelShape shape() {
    ModelShape s;
    s.layers = kLayers;
    return s;
  }
  World() : pools(ModelId(0), shape(), {kRowsOfAPage, kPages, kPages}, &log) {}

  // Executes the log. Freed slots become 0.
  void flush() {
    for (const Move& m : log) {
      auto& store = m.store == Store::kKv ? kv : hidden;
      const auto from = m.from.page.index() * kRowsOfAPage;
      for (int i = 0; i < (m.kind == Move::kFree ? kRowsOfAPage : m.rows); ++i) {
        if (m.kind == Move::kFree) {
          store[from + static_cast<size_t>(i)] = 0;
          continue;
        }
        const auto a = static_cast<size_t>(m.from.slot + i), b = static_cast<size_t>(m.to.slot + i);
        ASSERT_LT(a, kRowsOfAPage);
        ASSERT_LT(b, kRowsOfAPage);
        ASSERT_NE(store[from + a], 0U) << "moves what is not there";
        store[m.to.page.index() * kRowsOfAPage + b] = store[from + a];
      }
    }
    log.clear();
  }

  std::vector<Move> log;
  ModelPools pools;
  std::vector<uint64_t> kv = std::vector<uint64_t>(kPages * kRowsOfAPage);
  std::vector<uint64_t> hidden = std::vector<uint64_t>(kPages * kRowsOfAPage);
  std::map<Tokens, PageId> published;
};

// A cache and its expected content.
struct Model {
  std::unique_ptr<SequenceCache> cache;
  Tokens text;  // what its sequence comes to
  std::vector<Content> rows;
  std::vector<Row> tree;  // parents of an unsettled tree, at the end of rows

  int rows_at(int to) const {
    int n = 0;
    while (n < static_cast<int>(rows.size()) && rows[static_cast<size_t>(n)].layers >= to) ++n;
    return n;
  }
};

size_t slot(std::span<const PageId> pages, int row) {
  return pages[static_cast<size_t>(row / kRowsOfAPage)].index() * kRowsOfAPage +
         static_cast<size_t>(row % kRowsOfAPage);
}

void check(World& w, const std::vector<Model>& all) {
  w.flush();
  std::set<PageId> kv, frontier;
  int frontier_pages = 0;
  for (const Model& m : all) {
    ASSERT_EQ(m.cache->rows(), static_cast<int>(m.rows.size()));
    for (int to = 1; to <= kLayers; ++to) {
      ASSERT_EQ(m.cache->rows(to), m.rows_at(to)) << to;
      std::vector<int> done;
      for (size_t r = static_cast<size_t>(m.rows_at(to)); r < m.rows.size(); ++r) {
        done.push_back(m.rows[r].layers);
      }
      ASSERT_EQ(m.cache->frontier_from(to), done);
    }
    for (size_t r = 0; r < m.rows.size(); ++r) {
      ASSERT_EQ(w.kv[slot(m.cache->pages(), static_cast<int>(r))], m.rows[r].id) << "row " << r;
      if (m.rows[r].layers >= kLayers) continue;
      ASSERT_EQ(w.hidden[slot(m.cache->frontier_pages(), static_cast<int>(r))], m.rows[r].id);
    }
    kv.insert(m.cache->pages().begin(), m.cache->pages().end());
    for (const PageId page : m.cache->frontier_pages()) {
      if (!page.valid()) continue;
      ASSERT_TRUE(frontier.insert(page).second) << "a frontier page with two owners";
      ++frontier_pages;
    }
  }
  for (const PageId page : kv) {
    int owners = 0;
    for (const Model& m : all) {
      owners +=
          static_cast<int>(std::count(m.cache->pages().begin(), m.cache->pages().end(), page));
    }
    ASSERT_EQ(w.pools.kv.owners(page), owners + (w.pools.prefixes.knows(page) ? 1 : 0));
  }
  for (const PageId page : w.pools.prefixes.pages()) {
    EXPECT_EQ(w.pools.kv.indexed(page), true);
  }
  ASSERT_EQ(w.pools.kv.used(), static_cast<int64_t>(kv.size()));
  ASSERT_EQ(w.pools.frontier.used(), frontier_pages);
  std::vector<const SequenceCache*> caches;
  for (const Model& m : all) {
    caches.push_back(m.cache.get());
    for (size_t r = 0; r < m.rows.size(); ++r) ASSERT_EQ(m.cache->inputs()[r], m.rows[r].token);
  }
  ASSERT_EQ(w.pools.check(caches), "");
  std::erase_if(w.published, [&](const auto& p) { return !w.pools.prefixes.knows(p.second); });
  ASSERT_EQ(w.published.size(), w.pools.prefixes.size());
}

class Walk {
 public:
  explicit Walk(uint64_t seed) : rng_(seed), all_(3) {
    // Texts with common prefixes of various lengths.
    Tokens text(48);
    for (const size_t same : {0, 13, 25}) {
      for (size_t i = same; i < text.size(); ++i) text[i] = static_cast<Token>(below(3));
      texts_.push_back(text);
    }
    for (Model& m : all_) m = fresh(below(texts_.size()));
  }
  ~Walk() {
    all_.clear();
    EXPECT_EQ(w_.pools.kv.used() + w_.pools.frontier.used(), 0);
    w_.pools.drop_prefixes();
    EXPECT_EQ(w_.pools.kv.free(), kPages);
    w_.flush();
    for (const uint64_t slot : w_.kv) EXPECT_EQ(slot, 0U) << "a free page that was not said to be";
  }
  int64_t adopted() const { return adopted_; }
  int64_t borrowed() const { return borrowed_; }
  int64_t given_up() const { return given_up_; }

  void step() {
    Model& m = all_[below(all_.size())];
    const size_t known = w_.pools.prefixes.size();
    switch (below(11)) {
      case 0:
      case 1:
      case 2:
        append(m);
        break;
      case 3:
        keep(m);
        break;
      case 4:
        truncate(m);
        break;
      case 5:
        fork(m);
        break;
      case 6:
        copy(m);
        break;
      case 7:
      case 8:
        publish(m);
        break;
      case 9:
        adopt(m);
        break;
      default:
        commit_tree(m);
        if (below(6) == 0) {
          m.cache->clear();
          m.rows.clear();
        } else {
          m.cache->release_unused();
          EXPECT_LE(m.cache->reserved_rows(), m.cache->rows() + kRowsOfAPage - 1);
        }
    }
    if (w_.pools.prefixes.size() < known) {
      given_up_ += static_cast<int64_t>(known - w_.pools.prefixes.size());
    }
    check(w_, all_);
  }

 private:
  size_t below(size_t n) { return rng_() % n; }
  Model fresh(size_t text) {
    Model m;
    m.cache = std::make_unique<SequenceCache>(CacheId(next_cache_++), &w_.pools);
    m.text = texts_[text];
    return m;
  }

  void commit_tree(Model& m) {
    m.cache->commit_tree();
    if (m.tree.empty()) return;
    // Up to and including the first row without exactly one child.
    size_t stay = 0;
    while (std::count(m.tree.begin(), m.tree.end(), static_cast<Row>(stay) - 1) == 1) ++stay;
    m.rows.resize(m.rows.size() - m.tree.size() + stay);
    m.tree.clear();
  }

  // reserve() takes the pages that need() returned.
  bool reserve(Model& m, int total, int to) {
    const PageNeed need = m.cache->need(total, to);
    const int64_t kv = w_.pools.kv.available(), frontier = w_.pools.frontier.available();
    if (need.kv > kv || need.frontier > frontier) return false;
    const auto cut = static_cast<size_t>(m.cache->rows() / kRowsOfAPage);
    const auto pages = m.cache->pages();
    const bool takes_back =
        cut < pages.size() && std::any_of(
                                  pages.begin() + static_cast<ptrdiff_t>(cut), pages.end(),
                                  [&](PageId page) { return w_.pools.kv.indexed(page); });
    const bool needs_cached = need.kv > w_.pools.kv.free();
    const size_t known = w_.pools.prefixes.size();
    m.cache->reserve(total, to);
    if (!takes_back && !needs_cached) {
      EXPECT_EQ(w_.pools.prefixes.size(), known) << "given up without need";
    }
    const int64_t taken = kv - w_.pools.kv.available();
    EXPECT_LE(taken, need.kv);
    // A borrowed page may be without other users when it was copied.
    EXPECT_GE(taken, need.kv - (takes_back ? 1 : 0));
    EXPECT_EQ(frontier - w_.pools.frontier.free(), need.frontier);
    EXPECT_EQ(m.cache->need(total, to).kv, 0);
    EXPECT_EQ(m.cache->need(total, to).frontier, 0);
    return true;
  }
  void append(Model& m) {
    commit_tree(m);
    const int to = below(2) ? kLayers : 1 + static_cast<int>(below(kLayers));
    const int n = static_cast<int>(below(7));
    if (m.rows.size() + static_cast<size_t>(n) > 40) return truncate(m);
    const int slack = static_cast<int>(below(6));
    if (!reserve(m, static_cast<int>(m.rows.size()) + n + slack, to)) return truncate(m);
    w_.flush();
    Tree tree;
    const bool chain = below(2) == 0;
    std::vector<Content> added;
    for (int i = 0; i < n; ++i) {
      const Row parent = chain ? i - 1 : static_cast<Row>(below(static_cast<size_t>(i) + 1)) - 1;
      const size_t row = m.rows.size() + static_cast<size_t>(i);
      const Token token = below(8) > 0 ? m.text[row] : static_cast<Token>(below(3));
      const uint64_t past = m.rows.empty() ? 0 : m.rows.back().id;
      added.push_back(
          {id_of(parent < 0 ? past : added[static_cast<size_t>(parent)].id, token), to, token});
      tree.add(token_in(token), parent);
    }
    m.cache->append(to, tree);
    // The device: frontier rows and new rows do layers up to `to`.
    for (Content& c : m.rows) c.layers = std::max(c.layers, to);
    m.rows.insert(m.rows.end(), added.begin(), added.end());
    for (size_t r = 0; r < m.rows.size(); ++r) {
      const Content& c = m.rows[r];
      w_.kv[slot(m.cache->pages(), static_cast<int>(r))] = c.id;
      if (c.layers < kLayers) {
        w_.hidden[slot(m.cache->frontier_pages(), static_cast<int>(r))] = c.id;
      }
    }
    m.cache->passes_done();
    bool is_chain = true;
    for (int i = 0; i < n; ++i) is_chain &= tree.parent[static_cast<size_t>(i)] == i - 1;
    if (is_chain) return;
    m.tree = tree.parent;
    if (below(2)) keep(m);
  }

  void keep(Model& m) {
    if (m.tree.empty()) return;
    std::vector<Row> path;  // any row with all above it
    for (Row r = static_cast<Row>(below(m.tree.size() + 1)) - 1; r >= 0;
         r = m.tree[static_cast<size_t>(r)]) {
      path.insert(path.begin(), r);
    }
    m.cache->retain(path);
    const size_t begin = m.rows.size() - m.tree.size();
    std::vector<Content> kept;
    for (const Row r : path) kept.push_back(m.rows[begin + static_cast<size_t>(r)]);
    m.rows.resize(begin);
    m.rows.insert(m.rows.end(), kept.begin(), kept.end());
    m.tree.clear();
  }

  void truncate(Model& m) {
    commit_tree(m);
    const auto at_most = static_cast<int>(below(45));
    const int reserved = m.cache->reserved_rows();
    m.cache->truncate(at_most);
    EXPECT_EQ(m.cache->reserved_rows(), reserved) << "a reservation lasts for its round";
    if (static_cast<size_t>(at_most) < m.rows.size()) m.rows.resize(static_cast<size_t>(at_most));
  }

  void fork(Model& m) {
    commit_tree(m);
    Model& other = all_[below(all_.size())];
    if (&other == &m) return;
    const int64_t used = w_.pools.kv.used();
    other = fresh(0);
    other.text = m.text;
    const auto rows = below(3) ? m.rows_at(kLayers) : static_cast<int>(below(45));
    other.rows.assign(m.rows.begin(), m.rows.begin() + std::min(rows, m.rows_at(kLayers)));
    other.cache->fork_from(*m.cache, rows);
    EXPECT_LE(w_.pools.kv.used(), used) << "a fork takes no pages";
  }

  // Appends the same rows of another cache.
  void copy(Model& m) {
    commit_tree(m);
    Model& other = all_[below(all_.size())];
    if (&other == &m) return;
    commit_tree(other);
    const int begin = static_cast<int>(m.rows.size()), end = static_cast<int>(other.rows.size());
    if (begin >= end) return;
    const auto last = static_cast<size_t>(begin) - 1;
    if (begin > 0 && m.rows[last].id != other.rows[last].id) return;  // another past
    if (m.rows_at(kLayers) < begin &&
        other.rows[static_cast<size_t>(begin)].layers > m.rows.back().layers) {
      return;
    }
    if (!reserve(m, end, 1)) return;
    m.cache->copy_from(*other.cache, begin, end);
    m.rows.insert(m.rows.end(), other.rows.begin() + begin, other.rows.end());
  }

  // Publishes rows that are of its text and have done all layers.
  void publish(Model& m) {
    commit_tree(m);
    const size_t final_tokens = below(4) ? m.text.size() : below(m.text.size());
    const uint64_t before = m.cache->pools()->prefixes.version();
    const bool news = m.cache->can_publish(final_tokens);
    m.cache->publish({}, std::span<const Token>(m.text).first(final_tokens));
    if (!news) EXPECT_EQ(m.cache->pools()->prefixes.version(), before);
    for (size_t n = kRowsOfAPage; n <= std::min(final_tokens, m.rows.size()); n += kRowsOfAPage) {
      for (size_t r = n - kRowsOfAPage; r < n; ++r) {
        if (m.rows[r].token != m.text[r] || m.rows[r].layers < kLayers) return;
      }
      const PageId page = m.cache->pages()[n / kRowsOfAPage - 1];
      const auto [known, fresh] = w_.published.try_emplace(
          Tokens(m.text.begin(), m.text.begin() + static_cast<ptrdiff_t>(n)), page);
      EXPECT_EQ(known->second, page) << "two pages with the same rows";
    }
  }

  // A sequence ends. The cache of another one adopts the longest known prefix of its text.
  void adopt(Model& m) {
    if (below(4)) publish(m);
    m.cache->clear();
    m.tree.clear();
    m.rows.clear();
    m.text = texts_[below(texts_.size())];
    check(w_, all_);
    const auto at_most = static_cast<int>(below(m.text.size()));
    int expected = 0;
    while (
        expected + kRowsOfAPage <= at_most &&
        w_.published.contains(Tokens(m.text.begin(), m.text.begin() + expected + kRowsOfAPage))) {
      expected += kRowsOfAPage;
    }
    ASSERT_EQ(m.cache->adopt({}, m.text, at_most), expected);
    if (below(2)) {
      const int borrowed = m.cache->borrow({}, m.text, at_most);
      EXPECT_LE(expected + borrowed, at_most);
      if (below(3) == 0) {
        EXPECT_EQ(m.cache->return_borrowed(), borrowed);
      } else {
        expected += borrowed;
        borrowed_ += borrowed;
      }
    }
    for (int r = static_cast<int>(m.rows.size()); r < expected; ++r) {
      const Token token = m.text[static_cast<size_t>(r)];
      m.rows.push_back({id_of(m.rows.empty() ? 0 : m.rows.back().id, token), kLayers, token});
    }
    adopted_ += expected;
  }

  std::mt19937_64 rng_;
  World w_;
  std::vector<Tokens> texts_;
  std::vector<Model> all_;
  int64_t adopted_ = 0, borrowed_ = 0, given_up_ = 0;
  int next_cache_ = 0;
};

TEST(SequenceCache, EqualsTheModelUnderRandomOperations) {
  int64_t adopted = 0, borrowed = 0, given_up = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    for (int i = 0; i < 120 && !testing::Test::HasFailure(); ++i) walk.step();
    if (testing::Test::HasFailure()) return;
    adopted += walk.adopted();
    borrowed += walk.borrowed();
    given_up += walk.given_up();
  }
  EXPECT_GT(adopted, 3000) << "rows; the seeds prove nothing about the index";
  EXPECT_GT(borrowed, 1000) << "rows";
  EXPECT_GT(given_up, 200) << "pages; the seeds prove nothing about giving up";
}

struct One {
  World w;
  SequenceCache cache{CacheId(0), &w.pools};
  void append(int to, const std::vector<Row>& parents) {
    Tree tree;
    for (const Row p : parents) tree.add({}, p);
    cache.append(to, tree);
  }
};

TEST(SequenceCache, AnUnsettledTreeKeepsItsUnbranchedPrefix) {
  const std::pair<std::vector<Row>, int> cases[] = {
      {{-1, 0, 1}, 3}, {{-1, 0, 1, 1}, 2}, {{-1, -1}, 0}, {{-1, 0, 0}, 1}, {{-1, 0, 1, 2, 1}, 2}};
  for (const auto& [parents, stay] : cases) {
    One one;
    one.cache.reserve(8, kLayers);
    one.append(kLayers, parents);
    EXPECT_EQ(one.cache.rows(), static_cast<int>(parents.size()));
    one.cache.commit_tree();
    EXPECT_EQ(one.cache.rows(), stay);
  }
}

TEST(SequenceCache, FrontierPagesGoWhenTheirRowsHaveGoneOn) {
  One one;
  one.cache.reserve(6, 2);
  one.append(2, {-1, 0, 1, 2, 3, 4});
  EXPECT_EQ(one.w.pools.frontier.used(), 2);
  one.append(kLayers, {});
  EXPECT_EQ(one.w.pools.frontier.used(), 2) << "the pass reads them";
  one.cache.release_unused();
  EXPECT_EQ(one.w.pools.frontier.used(), 0);
  EXPECT_EQ(one.cache.rows(kLayers), 6);
}

TEST(SequenceCache, PassesHaveTheirTurns) {
  One one;
  const int first = one.cache.begin_pass(), reader = one.cache.begin_reader();
  const int second = one.cache.begin_pass();
  EXPECT_TRUE(one.cache.all_launched_before(first));
  EXPECT_FALSE(one.cache.all_launched_before(reader)) << "what it reads will not be there";
  EXPECT_FALSE(one.cache.all_launched_before(second));
  one.cache.launch_pass();
  EXPECT_TRUE(one.cache.all_launched_before(reader));
  EXPECT_TRUE(one.cache.all_launched_before(second));
  EXPECT_FALSE(one.cache.all_done_before(second));
  one.cache.take_back_pass();
  EXPECT_FALSE(one.cache.all_launched_before(second)) << "it has not run after all";
  one.cache.launch_pass();
  one.cache.end_pass();
  EXPECT_TRUE(one.cache.all_done_before(reader));
  EXPECT_TRUE(one.cache.all_done_before(second));
  one.cache.launch_pass();
  one.cache.end_pass();
  EXPECT_FALSE(one.cache.idle());
  one.cache.end_reader();
  EXPECT_TRUE(one.cache.idle());
}

// Devices read the page table in place.
TEST(SequenceCache, ATableUnderAPassStaysWhereItIs) {
  One one;
  one.cache.reserve(3, kLayers);
  const int pass = one.cache.begin_pass();
  one.append(kLayers, {-1, 0, 1});
  const std::span<const PageId> read = one.cache.pages();
  const std::vector<PageId> known(read.begin(), read.end());
  for (int rows = 4; rows < 16 * kRowsOfAPage; ++rows) one.cache.reserve(rows, kLayers);
  EXPECT_TRUE(std::ranges::equal(read, known));
  EXPECT_TRUE(std::ranges::equal(one.cache.pages().first(known.size()), known));
  EXPECT_EQ(one.cache.pages().size(), 16U);
  EXPECT_TRUE(one.cache.all_done_before(pass));
  one.cache.end_pass();
  EXPECT_EQ(one.cache.reusable(), 3) << "in memory";
}

In chosen_in(TicketId ticket) {
  In in;
  in.kind = In::kChosen;
  in.ref.ticket = ticket;
  return in;
}

In mask_in() {
  In in;
  in.kind = In::kMask;
  return in;
}

std::vector<std::pair<int, TicketId>> chosen_rows(const SequenceCache& cache) {
  std::vector<std::pair<int, TicketId>> rows;
  for (const auto& [row, in] : cache.chosen()) rows.emplace_back(row, in.ref.ticket);
  return rows;
}

Tokens fed(const SequenceCache& cache) { return {cache.inputs().begin(), cache.inputs().end()}; }

using Chosen = std::vector<std::pair<int, TicketId>>;

TEST(SequenceCache, RowsThatGoLeaveTheTokenHistory) {
  One one;
  one.cache.reserve(20, kLayers);
  const auto append = [&](int rows) {
    Tree tree;
    for (int i = 0; i < rows; ++i) tree.chain(token_in(i));
    one.cache.append(kLayers, tree);
  };
  // As a device that has run all passes.
  const auto count_all = [&](SequenceCache& cache) {
    TokenHistory& history = *cache.token_history();
    for (int row = history.known(); row < cache.rows(); ++row)
      history.append(cache.inputs()[static_cast<size_t>(row)]);
    return &history;
  };
  append(6);
  EXPECT_EQ(one.cache.token_history()->known(), 0);
  const TokenHistory* const history = count_all(one.cache);
  one.cache.truncate(4);
  EXPECT_EQ(history->known(), 4);

  Tree tree;
  tree.add(token_in(10), -1);
  tree.add(token_in(11), 0);
  tree.add(token_in(12), 0);
  one.cache.append(kLayers, tree);
  count_all(one.cache);
  one.cache.retain(std::vector<Row>{0, 2});
  EXPECT_EQ(history->known(), 5) << "row 5 has another token now";
  EXPECT_EQ(one.cache.inputs()[5], 12);
  count_all(one.cache);

  SequenceCache fork(CacheId(1), &one.w.pools);
  fork.fork_from(one.cache, 5);
  EXPECT_EQ(fork.token_history()->known(), 5) << "a fork has counts of its own";
  EXPECT_NE(fork.token_history().get(), history);
  fork.truncate(1);
  EXPECT_EQ(history->known(), 6);
  one.cache.clear();
  EXPECT_EQ(history->known(), 0);

  // A pass under way may use the history, so it is not changed.
  one.cache.reserve(20, kLayers);
  append(6);
  const std::shared_ptr<TokenHistory> used = one.cache.token_history();
  count_all(one.cache);
  one.cache.begin_pass();
  one.cache.truncate(2);
  EXPECT_EQ(used->known(), 6);
  one.cache.end_pass();
  EXPECT_NE(one.cache.token_history(), used);
}

TEST(SequenceCache, ReportsTheInputsOfItsRows) {
  One one;
  one.cache.reserve(20, kLayers);
  Tree first;
  for (const In& in : {token_in(5), chosen_in(70), token_in(6), chosen_in(71)}) first.chain(in);
  one.cache.append(kLayers, first);
  EXPECT_EQ(fed(one.cache), (Tokens{5, -1, 6, -1}));
  EXPECT_EQ(chosen_rows(one.cache), (Chosen{{1, 70}, {3, 71}}));
  one.cache.resolve_inputs(Tokens{5, 8, 6});
  EXPECT_EQ(fed(one.cache), (Tokens{5, 8, 6, -1})) << "row 3 is not final yet";
  EXPECT_EQ(chosen_rows(one.cache), (Chosen{{3, 71}}));
  one.cache.truncate(3);
  EXPECT_EQ(fed(one.cache), (Tokens{5, 8, 6}));
  EXPECT_EQ(chosen_rows(one.cache), Chosen());

  // A tree whose path 0, 2, 5 is retained; its rows keep their inputs.
  Tree tree;
  tree.add(token_in(1), -1);
  tree.add(token_in(2), 0);
  tree.add(chosen_in(72), 0);
  tree.add(mask_in(), 0);
  tree.add(chosen_in(73), 1);
  tree.add(chosen_in(74), 2);
  one.cache.append(kLayers, tree);
  EXPECT_EQ(fed(one.cache), (Tokens{5, 8, 6, 1, 2, -1, -2, -1, -1}));
  one.cache.retain(std::vector<Row>{0, 2, 5});
  EXPECT_EQ(fed(one.cache), (Tokens{5, 8, 6, 1, -1, -1}));
  EXPECT_EQ(chosen_rows(one.cache), (Chosen{{4, 72}, {5, 74}}));

  SequenceCache fork(CacheId(1), &one.w.pools), copy(CacheId(2), &one.w.pools);
  fork.fork_from(one.cache, 5);
  EXPECT_EQ(fed(fork), (Tokens{5, 8, 6, 1, -1}));
  EXPECT_EQ(chosen_rows(fork), (Chosen{{4, 72}}));
  copy.reserve(6, kLayers);
  copy.copy_from(one.cache, 0, 6);
  EXPECT_EQ(fed(copy), fed(one.cache));
  EXPECT_EQ(chosen_rows(copy), chosen_rows(one.cache));
  one.cache.resolve_inputs(Tokens{5, 8, 6, 1, 9, 3, 4});
  EXPECT_EQ(fed(one.cache), (Tokens{5, 8, 6, 1, 9, 3}));
  EXPECT_EQ(chosen_rows(fork), (Chosen{{4, 72}})) << "the others learn it at rounds of their own";
  one.cache.clear();
  EXPECT_EQ(fed(one.cache), Tokens());
}

// --- The prefix index

// A cache with the inputs `tokens`, from one completed pass.
void feed(SequenceCache& cache, const Tokens& tokens, int to = kLayers) {
  Tree tree;
  for (const Token t : tokens) tree.chain(token_in(t));
  cache.reserve(cache.rows() + static_cast<int>(tokens.size()), to);
  cache.append(to, tree);
  cache.passes_done();
}

const Tokens kText = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

struct Two {
  World w;
  SequenceCache a{CacheId(0), &w.pools}, b{CacheId(1), &w.pools};
};

TEST(SequenceCache, AdoptsTheFullPagesOfAnother) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  EXPECT_EQ(two.b.adopt({}, kText, 9), 8);
  EXPECT_EQ(two.b.rows(kLayers), 8);
  EXPECT_EQ(fed(two.b), (Tokens{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(two.w.pools.kv.used(), 3) << "two of them by both";
  two.a.clear();
  EXPECT_EQ(two.w.pools.kv.used(), 2);
  two.b.clear();
  EXPECT_EQ(two.w.pools.kv.used(), 0);
  EXPECT_EQ(two.w.pools.kv.cached(), 2);
  EXPECT_EQ(two.b.adopt({}, kText, 7), 4) << "no more than is wanted";
}

TEST(SequenceCache, WhatIsSharedIsCopiedBeforeItIsWritten) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  two.b.adopt({}, kText, 8);
  two.b.truncate(6);
  EXPECT_EQ(two.b.need(8, kLayers).kv, 1);
  const PageId shared = two.b.pages()[1];
  feed(two.b, {0, 0});
  EXPECT_NE(two.b.pages()[1], shared);
  EXPECT_EQ(two.a.pages()[1], shared);
  two.b.publish({}, Tokens{1, 2, 3, 4, 5, 6, 0, 0});
  EXPECT_EQ(two.w.pools.prefixes.size(), 3U);
}

TEST(SequenceCache, BorrowsTheFirstRowsOfAPageAndCopiesThem) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  two.a.clear();
  const Tokens text = {1, 2, 3, 4, 5, 6, 0, 0};
  EXPECT_EQ(two.b.adopt({}, text, 7), 4);
  EXPECT_EQ(two.b.borrow({}, text, 7), 2);
  EXPECT_EQ(fed(two.b), (Tokens{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(two.b.need(8, kLayers).kv, 1) << "for the copy, though only the index shares the page";
  EXPECT_EQ(two.b.shared_pages(8), std::vector<PageId>()) << "copied for every borrower";
  const PageId page = two.b.pages()[1];
  feed(two.b, {0, 0});
  EXPECT_NE(two.b.pages()[1], page);
  EXPECT_TRUE(two.w.pools.prefixes.knows(page)) << "the other text is still known";
  two.b.publish({}, text);
  EXPECT_EQ(two.w.pools.prefixes.size(), 3U);
  EXPECT_EQ(two.w.pools.check(std::vector<const SequenceCache*>{&two.a, &two.b}), "");
}

TEST(SequenceCache, ReturnsBorrowedRows) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  two.a.clear();
  two.b.adopt({}, kText, 7);
  two.b.borrow({}, kText, 7);
  EXPECT_EQ(two.b.rows(), 7);
  EXPECT_EQ(two.b.return_borrowed(), 3);
  EXPECT_EQ(two.b.rows(), 4);
  EXPECT_EQ(two.b.return_borrowed(), 0);
  EXPECT_EQ(two.b.need(8, kLayers).kv, 1);
  EXPECT_EQ(two.w.pools.kv.used(), 1);
  EXPECT_EQ(two.w.pools.check(std::vector<const SequenceCache*>{&two.a, &two.b}), "");
}

// The last user of a published page can overwrite it after a truncation, without a copy.
TEST(SequenceCache, ACutPageWithoutOtherOwnersIsReused) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  two.a.truncate(2);
  two.a.release_unused();
  EXPECT_EQ(two.w.pools.kv.cached(), 1);
  EXPECT_EQ(two.a.need(4, kLayers).kv, 0);
  feed(two.a, {0});
  EXPECT_EQ(two.w.pools.prefixes.size(), 0U) << "nor is what lay behind it of use";
  EXPECT_EQ(two.w.pools.kv.used(), 1);
}

TEST(SequenceCache, TwoThatRanTheSameRowsComeToShareThem) {
  Two two;
  feed(two.a, kText);
  feed(two.b, kText);
  EXPECT_EQ(two.w.pools.kv.used(), 6);
  two.a.publish({}, kText);
  two.b.publish({}, kText);
  EXPECT_EQ(two.w.pools.kv.used(), 4);
  EXPECT_EQ(two.a.pages()[1], two.b.pages()[1]);
  EXPECT_NE(two.a.pages()[2], two.b.pages()[2]) << "not full";
  const std::vector<const SequenceCache*> caches = {&two.a, &two.b};
  EXPECT_EQ(two.w.pools.check(caches), "");
}

TEST(SequenceCache, PublishesWhatIsFinalAndInMemory) {
  struct Case {
    const char* what;
    std::function<void(SequenceCache&)> act;
    size_t pages;
  };
  const Case cases[] = {
      {"two full pages", [](SequenceCache& c) { feed(c, kText); }, 2},
      {"another token than the final one",
       [](SequenceCache& c) { feed(c, {1, 2, 3, 4, 5, 6, 0, 8}); }, 1},
      {"layers not done",
       [](SequenceCache& c) {
         feed(c, {1, 2, 3, 4, 5});
         feed(c, {6, 7, 8}, 2);
       },
       1},
      {"a pass under way",
       [](SequenceCache& c) {
         feed(c, {1, 2, 3, 4, 5});
         Tree more;
         for (const Token t : {6, 7, 8}) more.chain(token_in(t));
         c.reserve(8, kLayers);
         c.append(kLayers, more);
       },
       1},
      {"a continuation under way",
       [](SequenceCache& c) {
         feed(c, {1, 2, 3, 4, 5, 6, 7, 8}, 2);
         c.append(kLayers, Tree());
       },
       0},
      {"siblings that look like a text",
       [](SequenceCache& c) {
         feed(c, {1, 2, 3});
         Tree tree;
         tree.add(token_in(4), -1);
         tree.add(token_in(5), -1);
         c.reserve(5, kLayers);
         c.append(kLayers, tree);
         c.passes_done();
       },
       0},
      {"masks",
       [](SequenceCache& c) {
         Tree tree;
         for (const Token t : {1, 2, 3}) tree.chain(token_in(t));
         tree.chain(mask_in());
         c.reserve(4, kLayers);
         c.append(kLayers, tree);
         c.passes_done();
       },
       0},
      {"an embedding",
       [](SequenceCache& c) {
         In in = token_in(5);
         in.kind = In::kEmbed;
         feed(c, {1, 2, 3, 4});
         Tree tree;
         tree.chain(in);
         c.reserve(5, kLayers);
         c.append(kLayers, tree);
         feed(c, {6, 7, 8});
       },
       1},
      {"rows that saw a memory",
       [](SequenceCache& c) {
         feed(c, {1, 2, 3, 4});
         Tree tree;
         for (const Token t : {5, 6}) tree.chain(token_in(t));
         c.reserve(6, kLayers);
         c.append_private(kLayers, tree);
         feed(c, {7, 8});
       },
       1},
      {"rows behind dropped private ones",
       [](SequenceCache& c) {
         feed(c, {1, 2, 3, 4, 5});
         Tree tree;
         tree.chain(token_in(6));
         c.reserve(6, kLayers);
         c.append_private(kLayers, tree);
         c.truncate(5);
         feed(c, {6, 7, 8});
       },
       2},
      {"unknown chosen rows",
       [](SequenceCache& c) {
         Tree tree;
         for (const Token t : {1, 2, 3}) tree.chain(token_in(t));
         tree.chain(chosen_in(7));
         c.reserve(4, kLayers);
         c.append(kLayers, tree);
         c.passes_done();
       },
       0},
      {"chosen rows that are known",
       [](SequenceCache& c) {
         Tree tree;
         for (const Token t : {1, 2, 3}) tree.chain(token_in(t));
         tree.chain(chosen_in(7));
         c.reserve(4, kLayers);
         c.append(kLayers, tree);
         c.passes_done();
         c.resolve_inputs(kText);
       },
       1},
  };
  for (const Case& c : cases) {
    Two two;
    c.act(two.a);
    two.a.publish({}, kText);
    EXPECT_EQ(two.w.pools.prefixes.size(), c.pages) << c.what;
  }
}

TEST(SequenceCache, AnEmbeddingStaysPrivateWhereItMoves) {
  Two two;
  In in = token_in(1);
  in.kind = In::kEmbed;
  Tree tree;
  for (const Token t : {0, 1, 2, 3}) tree.add(token_in(t), -1);
  tree.add(in, -1);
  two.a.reserve(5, kLayers);
  two.a.append(kLayers, tree);
  two.a.passes_done();
  two.a.retain(std::vector<Row>{4});
  feed(two.a, {2, 3, 4});
  EXPECT_EQ(fed(two.a), (Tokens{1, 2, 3, 4}));
  two.a.publish({}, kText);
  EXPECT_EQ(two.w.pools.prefixes.size(), 0U);
}

TEST(SequenceCache, ContinuesPublishingAfterTheIndexForgot) {
  Two two;
  feed(two.a, {1, 2, 3, 4});
  two.a.publish({}, kText);
  two.w.pools.drop_prefixes();
  feed(two.a, {5, 6, 7, 8});
  two.a.publish({}, kText);
  EXPECT_EQ(two.w.pools.prefixes.size(), 2U);
  EXPECT_EQ(two.b.adopt({}, kText, 10), 8);
}

// The pages that shared() lists.
size_t shared(const Two& two) { return two.w.pools.prefixes.shared(100).size(); }

TEST(SequenceCache, PagesThatAnotherSequenceUsesAreShared) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  EXPECT_EQ(shared(two), 0U);
  EXPECT_EQ(two.b.adopt({}, kText, 7), 4);
  EXPECT_EQ(shared(two), 1U);
}

TEST(SequenceCache, ASequenceThatReturnsToItsOwnPagesSharesNothing) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  two.a.clear();
  EXPECT_EQ(two.a.adopt({}, kText, 8), 8) << "after preemption";
  EXPECT_EQ(shared(two), 0U);
}

TEST(SequenceCache, PagesThatTwoSequencesFillAreShared) {
  Two two;
  feed(two.a, {1, 2, 3, 4});
  feed(two.b, kText);
  two.a.publish({}, kText);
  two.b.publish({}, kText);
  EXPECT_EQ(two.w.pools.prefixes.size(), 2U);
  EXPECT_EQ(shared(two), 1U) << "both had it, and the second page is of one of them";
}

TEST(SequenceCache, ThereIsNewsWhereAPageIsFullOrForgotten) {
  Two two;
  feed(two.a, {1, 2, 3, 4, 5, 6, 7});
  EXPECT_FALSE(two.a.can_publish(3)) << "not final";
  EXPECT_TRUE(two.a.can_publish(4));
  two.a.publish({}, kText);
  EXPECT_FALSE(two.a.can_publish(kText.size()));
  feed(two.a, {8});
  EXPECT_FALSE(two.a.can_publish(7)) << "not final";
  EXPECT_TRUE(two.a.can_publish(8));
  two.a.publish({}, kText);
  two.w.pools.drop_prefixes();
  EXPECT_TRUE(two.a.can_publish(8));
}

TEST(SequenceCache, ACachedPageIsEvictedForANewOne) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  two.a.clear();
  EXPECT_EQ(two.w.pools.kv.cached(), 2);
  two.w.flush();
  two.b.reserve((kPages - 1) * kRowsOfAPage, kLayers);
  EXPECT_EQ(two.w.pools.kv.cached(), 1);
  ASSERT_EQ(two.w.log.size(), 1U);
  EXPECT_EQ(two.w.log[0].kind, Move::kFree) << "its pages have no owner";
  two.b.reserve(kPages * kRowsOfAPage, kLayers);
  EXPECT_EQ(two.w.pools.prefixes.size(), 0U);
  EXPECT_EQ(two.w.pools.kv.available(), 0);
}

TEST(SequenceCache, SwitchedOffNothingIsKnown) {
  std::vector<Move> log;
  ModelPools pools(ModelId(0), World::shape(), {kRowsOfAPage, kPages, kPages}, &log, false);
  SequenceCache a(CacheId(0), &pools), b(CacheId(1), &pools);
  feed(a, kText);
  EXPECT_FALSE(a.can_publish(kText.size()));
  a.publish({}, kText);
  EXPECT_EQ(b.adopt({}, kText, 10), 0);
  a.clear();
  EXPECT_EQ(pools.kv.free(), kPages);
}

TEST(ModelPools, ARecountFindsWhatIsWrong) {
  Two two;
  feed(two.a, kText);
  two.a.publish({}, kText);
  std::vector<const SequenceCache*> caches = {&two.a, &two.b};
  EXPECT_EQ(two.w.pools.check(caches), "");
  EXPECT_NE(two.w.pools.check({}), "") << "pages that no cache owns";
  two.w.pools.kv.share(two.a.pages()[0]);
  EXPECT_NE(two.w.pools.check(caches), "") << "an owner too many";
  two.w.pools.kv.release(two.a.pages()[0]);
  two.w.pools.kv.release(two.a.pages()[2]);
  EXPECT_NE(two.w.pools.check(caches), "") << "a used page among the free ones";
  EXPECT_EQ(two.w.pools.kv.take(), two.a.pages()[2]);
  EXPECT_EQ(two.w.pools.check(caches), "");
}

TEST(SequenceCacheDeathTest, BooksThatDoNotAddUp) {
  One one;
  one.cache.reserve(4, kLayers);
  EXPECT_DEATH(one.append(kLayers, {-1, 0, 1, 2, 3}), "broken invariant") << "not reserved";
  EXPECT_DEATH(one.append(2, {-1}), "broken invariant") << "no frontier page";
  one.append(kLayers, {-1, 0, 0});
  EXPECT_DEATH(one.append(kLayers, {-1}), "broken invariant") << "on an unsettled tree";
  EXPECT_DEATH(one.cache.retain(std::vector<Row>{1, 0}), "broken invariant");
  EXPECT_DEATH(one.cache.retain(std::vector<Row>{0, 7}), "broken invariant");
  one.cache.commit_tree();
  SequenceCache fork(CacheId(1), &one.w.pools);
  fork.fork_from(one.cache);
  EXPECT_DEATH(one.append(kLayers, {-1}), "broken invariant") << "a page with two owners";
}

}  // namespace
}  // namespace tandem
