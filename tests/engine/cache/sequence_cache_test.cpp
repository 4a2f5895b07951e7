// Sequence caches against a model that keeps every row's content in a list: whatever is done to the
// books, executing the emitted moves on a memory leaves each row's content in its slot.
#include "engine/cache/sequence_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>

namespace tandem {
namespace {

constexpr int kLayers = 5;
constexpr int kPageRows = 4;
constexpr int kPages = 40;

// What a row holds: an identity, and the layers that it has done.
struct Content {
  uint64_t id = 0;
  int layers = 0;
};

struct World {
  static ModelShape shape() {
    ModelShape s;
    s.layers = kLayers;
    return s;
  }
  World() : pools(ModelId(0), shape(), {kPageRows, kPages, kPages}, &log) {}

  // Executes the log. Freed slots become 0.
  void flush() {
    for (const Move& m : log) {
      auto& store = m.store == Store::kKv ? kv : hidden;
      const auto from = m.from.page.index() * kPageRows;
      for (int i = 0; i < (m.kind == Move::kFree ? kPageRows : m.rows); ++i) {
        if (m.kind == Move::kFree) {
          store[from + static_cast<size_t>(i)] = 0;
          continue;
        }
        const auto a = static_cast<size_t>(m.from.slot + i), b = static_cast<size_t>(m.to.slot + i);
        ASSERT_LT(a, kPageRows);
        ASSERT_LT(b, kPageRows);
        ASSERT_NE(store[from + a], 0U) << "moves what is not there";
        store[m.to.page.index() * kPageRows + b] = store[from + a];
      }
    }
    log.clear();
  }

  std::vector<Move> log;
  ModelPools pools;
  std::vector<uint64_t> kv = std::vector<uint64_t>(kPages * kPageRows);
  std::vector<uint64_t> hidden = std::vector<uint64_t>(kPages * kPageRows);
  uint64_t next_id = 1;
};

// A cache, and what it must hold.
struct Model {
  std::unique_ptr<SequenceCache> cache;
  std::vector<Content> rows;
  std::vector<Row> tree;  // parents of an unsettled tree, at the end of rows

  int rows_at(int to) const {
    int n = 0;
    while (n < static_cast<int>(rows.size()) && rows[static_cast<size_t>(n)].layers >= to) ++n;
    return n;
  }
};

size_t slot(std::span<const PageId> pages, int row) {
  return pages[static_cast<size_t>(row / kPageRows)].index() * kPageRows +
         static_cast<size_t>(row % kPageRows);
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
    ASSERT_EQ(w.pools.kv.owners(page), owners);
  }
  ASSERT_EQ(w.pools.kv.used(), static_cast<int64_t>(kv.size()));
  ASSERT_EQ(w.pools.frontier.used(), frontier_pages);
}

class Walk {
 public:
  explicit Walk(uint64_t seed) : rng_(seed), all_(3) {
    for (Model& m : all_) m.cache = fresh();
  }
  ~Walk() {
    all_.clear();
    EXPECT_EQ(w_.pools.kv.used() + w_.pools.frontier.used(), 0);
  }

  void step() {
    Model& m = all_[below(all_.size())];
    switch (below(8)) {
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
      default:
        settle(m);
        if (below(6) == 0) {
          m.cache->clear();
          m.rows.clear();
        } else {
          m.cache->release_unused();
          EXPECT_LE(m.cache->reserved_rows(), m.cache->rows() + kPageRows - 1);
        }
    }
    check(w_, all_);
  }

 private:
  size_t below(size_t n) { return rng_() % n; }
  std::unique_ptr<SequenceCache> fresh() {
    return std::make_unique<SequenceCache>(CacheId(next_cache_++), &w_.pools);
  }

  void settle(Model& m) {
    m.cache->settle();
    if (m.tree.empty()) return;
    // Up to and with the first row that has not exactly one child.
    size_t stay = 0;
    while (std::count(m.tree.begin(), m.tree.end(), static_cast<Row>(stay) - 1) == 1) ++stay;
    m.rows.resize(m.rows.size() - m.tree.size() + stay);
    m.tree.clear();
  }

  // reserve() takes exactly what need() told.
  bool reserve(Model& m, int total, int to) {
    const PageNeed need = m.cache->need(total, to);
    const int64_t kv = w_.pools.kv.free(), frontier = w_.pools.frontier.free();
    if (need.kv > kv || need.frontier > frontier) return false;
    std::vector<PageId> before(m.cache->pages().begin(), m.cache->pages().end());
    m.cache->reserve(total, to);
    EXPECT_EQ(kv - w_.pools.kv.free(), need.kv - released_shared(before, m));
    EXPECT_EQ(frontier - w_.pools.frontier.free(), need.frontier);
    EXPECT_EQ(m.cache->need(total, to).kv, 0);
    EXPECT_EQ(m.cache->need(total, to).frontier, 0);
    return true;
  }
  // Shared pages are copied, and stay used by the others: none of them comes free.
  static int64_t released_shared(const std::vector<PageId>&, const Model&) { return 0; }

  void append(Model& m) {
    settle(m);
    const int to = below(2) ? kLayers : 1 + static_cast<int>(below(kLayers));
    const int n = static_cast<int>(below(7));
    if (m.rows.size() + static_cast<size_t>(n) > 40) return truncate(m);
    const int slack = static_cast<int>(below(6));
    if (!reserve(m, static_cast<int>(m.rows.size()) + n + slack, to)) return truncate(m);
    w_.flush();
    Tree tree;
    const bool chain = below(2) == 0;
    for (int i = 0; i < n; ++i) {
      tree.add({}, chain ? i - 1 : static_cast<Row>(below(static_cast<size_t>(i) + 1)) - 1);
    }
    m.cache->append(to, tree);
    // The device: rows that were behind come to `to`, and new ones are there.
    for (Content& c : m.rows) c.layers = std::max(c.layers, to);
    for (int i = 0; i < n; ++i) m.rows.push_back({w_.next_id++, to});
    for (size_t r = 0; r < m.rows.size(); ++r) {
      const Content& c = m.rows[r];
      w_.kv[slot(m.cache->pages(), static_cast<int>(r))] = c.id;
      if (c.layers < kLayers) {
        w_.hidden[slot(m.cache->frontier_pages(), static_cast<int>(r))] = c.id;
      }
    }
    bool is_chain = true;
    for (int i = 0; i < n; ++i) is_chain &= tree.parent[static_cast<size_t>(i)] == i - 1;
    if (is_chain) return;
    m.tree = tree.parent;
    if (below(2)) keep(m);
  }

  void keep(Model& m) {
    if (m.tree.empty()) return;
    std::vector<Row> path;
    for (Row r = 0; r < static_cast<Row>(m.tree.size()); ++r) {
      if (below(2)) path.push_back(r);
    }
    m.cache->keep(path);
    const size_t begin = m.rows.size() - m.tree.size();
    std::vector<Content> kept;
    for (const Row r : path) kept.push_back(m.rows[begin + static_cast<size_t>(r)]);
    m.rows.resize(begin);
    m.rows.insert(m.rows.end(), kept.begin(), kept.end());
    m.tree.clear();
  }

  void truncate(Model& m) {
    settle(m);
    const auto at_most = static_cast<int>(below(45));
    const int reserved = m.cache->reserved_rows();
    m.cache->truncate(at_most);
    EXPECT_EQ(m.cache->reserved_rows(), reserved) << "a reservation lasts for its round";
    if (static_cast<size_t>(at_most) < m.rows.size()) m.rows.resize(static_cast<size_t>(at_most));
  }

  void fork(Model& m) {
    settle(m);
    Model& other = all_[below(all_.size())];
    if (&other == &m) return;
    const int64_t used = w_.pools.kv.used();
    other = {fresh(), {m.rows.begin(), m.rows.begin() + m.rows_at(kLayers)}, {}};
    other.cache->fork_from(*m.cache);
    EXPECT_LE(w_.pools.kv.used(), used) << "a fork takes no pages";
  }

  // Appends what another cache has at the same rows.
  void copy(Model& m) {
    settle(m);
    Model& other = all_[below(all_.size())];
    if (&other == &m) return;
    settle(other);
    const int begin = static_cast<int>(m.rows.size()), end = static_cast<int>(other.rows.size());
    if (begin >= end) return;
    if (m.rows_at(kLayers) < begin &&
        other.rows[static_cast<size_t>(begin)].layers > m.rows.back().layers) {
      return;
    }
    if (!reserve(m, end, 1)) return;
    m.cache->copy_from(*other.cache, begin, end);
    m.rows.insert(m.rows.end(), other.rows.begin() + begin, other.rows.end());
  }

  std::mt19937_64 rng_;
  World w_;
  std::vector<Model> all_;
  int next_cache_ = 0;
};

TEST(SequenceCache, EqualsTheModelUnderRandomOperations) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) walk.step();
    if (testing::Test::HasFailure()) return;
  }
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
    one.cache.settle();
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

TEST(SequenceCacheDeathTest, BooksThatDoNotAddUp) {
  One one;
  one.cache.reserve(4, kLayers);
  EXPECT_DEATH(one.append(kLayers, {-1, 0, 1, 2, 3}), "broken invariant") << "not reserved";
  EXPECT_DEATH(one.append(2, {-1}), "broken invariant") << "no frontier page";
  one.append(kLayers, {-1, 0, 0});
  EXPECT_DEATH(one.append(kLayers, {-1}), "broken invariant") << "on an unsettled tree";
  EXPECT_DEATH(one.cache.keep(std::vector<Row>{1, 0}), "broken invariant");
  EXPECT_DEATH(one.cache.keep(std::vector<Row>{0, 7}), "broken invariant");
  one.cache.settle();
  SequenceCache fork(CacheId(1), &one.w.pools);
  fork.fork_from(one.cache);
  EXPECT_DEATH(one.append(kLayers, {-1}), "broken invariant") << "a page with two owners";
}

}  // namespace
}  // namespace tandem
