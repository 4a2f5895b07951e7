#include "engine/cache/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace tandem {
namespace {

constexpr int kPageRows = 2;
using Tokens = std::vector<Token>;

uint64_t always_the_same(uint64_t, std::span<const Token>) { return 7; }

struct Fixture {
  explicit Fixture(int64_t pages = 16, PrefixIndex::Hash hash = &PrefixIndex::hash)
      : pool(pages), index(&pool, kPageRows, hash) {}

  // A sequence runs `tokens`, publishes its full pages, and ends. Returns the pages.
  std::vector<PageId> leave(const Tokens& tokens, const PrefixRoot& root = {}) {
    std::vector<PageId> pages = run(tokens, root);
    give_back(pages);
    return pages;
  }
  // Likewise, but does not end.
  std::vector<PageId> run(const Tokens& tokens, const PrefixRoot& root = {}) {
    std::vector<PageId> pages = index.find(root, tokens, 100);
    for (const PageId page : pages) pool.share(page);
    while ((pages.size() + 1) * kPageRows <= tokens.size()) {
      const PageId page = pool.take();
      const auto rows = std::span<const Token>(tokens).subspan(pages.size() * kPageRows, kPageRows);
      const PageId before = pages.empty() ? PageId() : pages.back();
      EXPECT_EQ(index.insert(root, before, rows, page), page);
      pages.push_back(page);
    }
    return pages;
  }
  // From the end on, as sequences do.
  void give_back(const std::vector<PageId>& pages) {
    for (size_t i = pages.size(); i-- > 0;) pool.release(pages[i]);
  }
  std::vector<PageId> evict(const std::string& client = "") {
    std::vector<PageId> freed;
    index.evict(client, &freed);
    return freed;
  }
  size_t known(const Tokens& tokens, const PrefixRoot& root = {}) const {
    return index.find(root, tokens, 100).size();
  }
  ~Fixture() { EXPECT_EQ(index.check(), ""); }

  PagePool pool;
  PrefixIndex index;
};

TEST(PrefixIndex, FindsTheLongestKnownBeginning) {
  Fixture f;
  const auto pages = f.leave({1, 2, 3, 4, 5, 6, 7});  // the last row fills no page
  EXPECT_EQ(f.index.size(), 3U);
  EXPECT_EQ(f.index.find({}, Tokens{1, 2, 3, 4, 5, 6, 7, 8}, 100), pages);
  EXPECT_EQ(f.known({1, 2, 3, 4, 9, 9}), 2U);
  EXPECT_EQ(f.known({1, 2, 3}), 1U);
  EXPECT_EQ(f.known({1}), 0U);
  EXPECT_EQ(f.known({3, 4}), 0U) << "a page means nothing without those before";
  EXPECT_EQ(f.known({1, 9, 3, 4}), 0U);
  EXPECT_EQ(f.index.find({}, Tokens{1, 2, 3, 4, 5, 6}, 2).size(), 2U) << "no more than wanted";
  EXPECT_EQ(f.index.find({}, Tokens{1, 2, 3, 4, 5, 6}, 0).size(), 0U);
  EXPECT_EQ(f.pool.cached(), 3);
}

TEST(PrefixIndex, FindsThePageWithTheLongestBeginning) {
  PagePool pool(100);
  PrefixIndex index(&pool, 4);
  const auto leave = [&](PageId before, const Tokens& tokens) {
    const PageId page = pool.take();
    EXPECT_EQ(index.insert({}, before, tokens, page), page);
    pool.release(page);
    return page;
  };
  const PageId first = leave({}, {1, 2, 3, 4}), other = leave({}, {1, 5, 6, 7});
  const PageId second = leave(first, {1, 2, 8, 8});
  const auto found = [&](PageId before, const Tokens& tokens) {
    const PrefixIndex::Beginning b = index.find_beginning({}, before, tokens, "");
    return std::pair(b.page, b.rows);
  };
  EXPECT_EQ(found({}, {1, 2, 3}), std::pair(first, 3));
  EXPECT_EQ(found({}, {1, 2, 9, 9}), std::pair(first, 2));
  EXPECT_EQ(found({}, {1, 5, 6, 9}), std::pair(other, 3));
  EXPECT_EQ(found(first, {1, 2, 3}), std::pair(second, 2));
  EXPECT_EQ(found({}, {2}).second, 0);
  EXPECT_EQ(found({}, {}).second, 0);
  EXPECT_EQ(found(second, {1}).second, 0);
  EXPECT_EQ(index.find_beginning({.salt = "b"}, {}, Tokens{1}, "").rows, 0) << "of one client";
  EXPECT_EQ(index.find_beginning({}, {}, Tokens{1, 2, 3}, "other").rows, 0) << "not its own text";
  PrefixIndex large(&pool, 8);
  large.insert({}, {}, Tokens{1, 2, 3, 4, 5, 6, 7, 8}, pool.take());
  EXPECT_EQ(large.find_beginning({}, {}, Tokens{1, 2, 9}, "").rows, 2);
  EXPECT_EQ(large.find_beginning({}, {}, Tokens{1, 9, 9}, "").rows, 0) << "less than a quarter";
  for (Token t = 0; t < PrefixIndex::kMostSiblings; ++t) leave({}, {1, 9, 9, t});
  EXPECT_EQ(found({}, {1, 2, 3}).second, 1) << "older pages are not looked at";
}

TEST(PrefixIndex, ChainsBranchWhereTheirTokensDiffer) {
  Fixture f;
  const auto a = f.leave({1, 2, 3, 4, 5, 6}), b = f.leave({1, 2, 7, 8, 5, 6});
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[2], b[2]) << "the same tokens behind others";
  EXPECT_EQ(f.index.size(), 5U);
  EXPECT_EQ(f.known({1, 2, 7, 8, 5, 6}), 3U);
  EXPECT_EQ(f.known({1, 2, 7, 8, 3, 4}), 2U);
}

TEST(PrefixIndex, RowsThatAreKnownKeepTheirPage) {
  Fixture f;
  const auto first = f.leave({1, 2});
  const PageId second = f.pool.take();
  EXPECT_EQ(f.index.insert({}, PageId(), Tokens{1, 2}, second), first[0]);
  EXPECT_FALSE(f.pool.indexed(second));
  f.pool.release(second);
  EXPECT_EQ(f.index.size(), 1U);
}

TEST(PrefixIndex, RootsStaySeparate) {
  Fixture f;
  const PrefixRoot a{.salt = "client a"}, b{.salt = "client b"};
  const PrefixRoot adapted{.salt = "client a", .adapter = AdapterId(0)};
  const PrefixRoot embedded{.salt = "client a", .source = "x"};
  const PrefixRoot lora{.salt = "client a", .lora = LoraId(0)};
  f.leave({1, 2, 3, 4}, a);
  EXPECT_EQ(f.known({1, 2, 3, 4}, a), 2U);
  for (const PrefixRoot& other : {b, adapted, embedded, lora, PrefixRoot()}) {
    EXPECT_EQ(f.known({1, 2, 3, 4}, other), 0U);
  }
  f.leave({1, 2}, b);
  EXPECT_EQ(f.index.size(), 3U);
}

TEST(PrefixIndex, ACollisionIsNotAHit) {
  Fixture f(64, &always_the_same);
  std::mt19937_64 rng(1);
  std::set<std::vector<Token>> prefixes;
  for (int i = 0; i < 8; ++i) {
    Tokens tokens;
    for (int t = 0; t < 6; ++t) tokens.push_back(static_cast<Token>(rng() % 2));
    f.leave(tokens);
    for (size_t n = kPageRows; n <= tokens.size(); n += kPageRows) {
      prefixes.insert({tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n)});
    }
  }
  for (int code = 0; code < 64; ++code) {
    Tokens tokens;
    for (int t = 0; t < 6; ++t) tokens.push_back(code >> t & 1);
    size_t expected = 0;
    while (prefixes.contains(
        {tokens.begin(),
         tokens.begin() + static_cast<ptrdiff_t>(std::min<size_t>(6, (expected + 1) * 2))})) {
      if (++expected == 3) break;
    }
    EXPECT_EQ(f.known(tokens), expected);
  }
  // Different roots collide as well, as all pages have one hash.
  EXPECT_EQ(f.known({0, 0}, {.salt = "salt"}), 0U);
  while (f.pool.cached() > 0) f.evict();
  EXPECT_EQ(f.index.size(), 0U);
}

std::set<uint64_t>& starts_of_chains() {
  static std::set<uint64_t> starts;
  return starts;
}

uint64_t recording(uint64_t before, std::span<const Token> tokens) {
  starts_of_chains().insert(before);
  return PrefixIndex::hash(before, tokens);
}

// Hashes of a chain cannot be predicted from its tokens.
TEST(PrefixIndex, HashesBeginAnywhere) {
  for (int i = 0; i < 5; ++i) {
    Fixture f(16, &recording);
    f.leave({1, 2});
    EXPECT_EQ(f.known({1, 2}), 1U);
  }
  EXPECT_EQ(starts_of_chains().size(), 5U);
}

TEST(PrefixIndex, EvictsTheLongestUnusedFromTheEndOfItsChain) {
  Fixture f;
  const auto a = f.leave({1, 1, 2, 2, 3, 3}), b = f.leave({4, 4, 5, 5});
  EXPECT_EQ(f.evict(), std::vector<PageId>{a[2]});
  EXPECT_EQ(f.known({1, 1, 2, 2, 3, 3}), 2U) << "a part of the chain stays of use";
  f.leave({1, 1, 2, 2});  // used again
  EXPECT_EQ(f.evict(), std::vector<PageId>{b[1]});
  EXPECT_EQ(f.evict(), std::vector<PageId>{b[0]});
  EXPECT_EQ(f.evict(), std::vector<PageId>{a[1]});
  EXPECT_EQ(f.evict(), std::vector<PageId>{a[0]});
  EXPECT_EQ(f.pool.free(), f.pool.total());
}

TEST(PrefixIndex, PagesInUseAreNotEvicted) {
  Fixture f;
  const auto kept = f.run({1, 1, 2, 2});
  const auto gone = f.leave({1, 1, 2, 2, 3, 3});
  EXPECT_EQ(f.pool.cached(), 1);
  EXPECT_EQ(f.evict(), std::vector<PageId>{gone[2]});
  EXPECT_EQ(f.pool.cached(), 0);
  EXPECT_EQ(f.known({1, 1, 2, 2}), 2U);
  f.give_back(kept);
  EXPECT_EQ(f.pool.cached(), 2);
}

// A fork may share the end of a chain but own its beginning.
TEST(PrefixIndex, APageIsEvictedWithItsSuccessors) {
  Fixture f;
  const auto chain = f.run({1, 1, 2, 2, 3, 3});
  f.pool.release(chain[0]);
  f.pool.release(chain[2]);
  EXPECT_EQ(f.pool.cached(), 2);
  EXPECT_EQ(f.evict(), (std::vector<PageId>{chain[2], chain[0]}));
  EXPECT_EQ(f.index.size(), 0U);
  EXPECT_EQ(f.pool.owners(chain[1]), 1) << "its user's alone now";
  EXPECT_EQ(f.index.insert({}, chain[0], Tokens{2, 2}, chain[1]), PageId()) << "behind the unknown";
  f.pool.release(chain[1]);
  EXPECT_EQ(f.pool.free(), f.pool.total());
}

TEST(PrefixIndex, ForgetsAll) {
  Fixture f;
  f.leave({1, 1, 2, 2});
  const auto used = f.run({1, 1, 3, 3}, {.salt = "salt"});
  std::vector<PageId> freed;
  f.index.clear(&freed);
  EXPECT_EQ(freed.size(), 2U);
  EXPECT_EQ(f.index.size(), 0U);
  EXPECT_EQ(f.pool.used(), 2);
  f.give_back(used);
  EXPECT_EQ(f.pool.free(), f.pool.total());
}

TEST(PrefixIndex, ItsVersionChangesWithEveryChange) {
  Fixture f;
  const uint64_t empty = f.index.version();
  f.leave({1, 1});
  const uint64_t one = f.index.version();
  EXPECT_NE(one, empty);
  f.leave({1, 1});
  EXPECT_EQ(f.index.version(), one) << "nothing new";
  f.evict();
  EXPECT_NE(f.index.version(), one);
}

// The tokens of the first rows up to each shared page, in the order of shared().
std::vector<Tokens> shared_texts(const PrefixIndex& index, size_t most = 100) {
  std::vector<Tokens> texts;
  for (const PrefixIndex::SharedPage& page : index.shared(most)) {
    EXPECT_TRUE(index.knows(page.name));
    EXPECT_LT(page.before, std::ssize(texts));
    Tokens text = page.before < 0 ? Tokens() : texts[static_cast<size_t>(page.before)];
    text.insert(text.end(), page.tokens.begin(), page.tokens.end());
    texts.push_back(text);
  }
  return texts;
}

TEST(PrefixIndex, SharedPagesAreListedByTheirLastUse) {
  Fixture f;
  const auto a = f.leave({1, 1, 2, 2, 3, 3}), b = f.leave({1, 1, 4, 4}), c = f.leave({5, 5});
  EXPECT_EQ(f.index.shared(100).size(), 0U) << "nothing was used again";
  f.index.use(b);
  f.index.use(std::span(a).first(2));
  EXPECT_EQ(shared_texts(f.index), (std::vector<Tokens>{{1, 1}, {1, 1, 2, 2}, {1, 1, 4, 4}}));
  EXPECT_EQ(shared_texts(f.index, 2), (std::vector<Tokens>{{1, 1}, {1, 1, 2, 2}}));
  EXPECT_EQ(shared_texts(f.index, 0), std::vector<Tokens>());
  f.index.use(c);
  EXPECT_EQ(shared_texts(f.index, 1), (std::vector<Tokens>{{5, 5}}));
  f.index.use(b);
  EXPECT_EQ(shared_texts(f.index),
            (std::vector<Tokens>{{1, 1}, {1, 1, 4, 4}, {5, 5}, {1, 1, 2, 2}}));
}

TEST(PrefixIndex, OnlyPagesOfThePlainRootAreListed) {
  Fixture f(64);
  for (const PrefixRoot& root : {PrefixRoot{.salt = "ann"}, PrefixRoot{.adapter = AdapterId(0)},
                                 PrefixRoot{.lora = LoraId(0)}, PrefixRoot{.source = "x"}}) {
    f.index.use(f.leave({1, 1, 2, 2}, root));
  }
  EXPECT_EQ(f.index.shared(100).size(), 0U);
  f.index.use(f.leave({1, 1, 2, 2}));
  EXPECT_EQ(f.index.shared(100).size(), 2U);
}

TEST(PrefixIndex, AllChainsOfALoraAdapterAreForgotten) {
  Fixture f(64);
  const PrefixRoot gone{.lora = LoraId(1)}, gone_too{.salt = "ann", .lora = LoraId(1)};
  const PrefixRoot other{.lora = LoraId(2)};
  f.leave({1, 1, 2, 2}, gone);
  f.leave({1, 1, 3, 3}, gone);
  f.leave({1, 1}, gone_too);
  f.leave({1, 1, 2, 2}, other);
  f.leave({1, 1, 2, 2});
  std::vector<PageId> freed;
  f.index.forget_lora(LoraId(1), &freed);
  EXPECT_EQ(freed.size(), 4U);
  EXPECT_EQ(f.known({1, 1, 2, 2}, gone) + f.known({1, 1}, gone_too), 0U);
  EXPECT_EQ(f.known({1, 1, 2, 2}, other), 2U);
  EXPECT_EQ(f.known({1, 1, 2, 2}), 2U);
  f.index.forget_lora(LoraId(1), &freed);
  EXPECT_EQ(freed.size(), 4U);
}

TEST(PrefixIndex, ANameIsOfOnePageAtOneTime) {
  Fixture f(2);
  const auto pages = f.leave({1, 1, 2, 2});
  f.index.use(pages);
  const auto listed = f.index.shared(100);
  ASSERT_EQ(listed.size(), 2U);
  f.evict();
  EXPECT_TRUE(f.index.knows(listed[0].name));
  EXPECT_FALSE(f.index.knows(listed[1].name));
  EXPECT_EQ(f.leave({1, 1, 2, 2}), pages) << "the same rows in the same page";
  EXPECT_FALSE(f.index.knows(listed[1].name));
  EXPECT_EQ(shared_texts(f.index), (std::vector<Tokens>{{1, 1}})) << "not used again yet";
}

TEST(PrefixIndexDeathTest, BooksThatDoNotAddUp) {
  Fixture f;
  const auto pages = f.run({1, 1});
  EXPECT_DEATH(f.index.insert({}, pages[0], Tokens{2, 2}, pages[0]), "broken invariant");
  const PageId page = f.pool.take();
  EXPECT_DEATH(f.index.insert({}, pages[0], Tokens{2}, page), "broken invariant") << "not full";
  EXPECT_DEATH(f.index.insert({.salt = "salt"}, pages[0], Tokens{2, 2}, page), "broken invariant")
      << "across roots";
  f.pool.release(page);
  f.give_back(pages);
}

// One client's prompts evict its own pages once it holds more than its share.
TEST(PrefixIndex, OneClientKeepsTheShareOfAnother) {
  Fixture f(16);
  const PrefixRoot ann = {.salt = "ann"}, eve = {.salt = "eve"};
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  f.leave(prompt, ann);  // 4 pages
  for (Token i = 0; i < 1000; ++i) {
    while (f.pool.free() < 4) f.evict("eve");
    f.leave({100 + i, 2, 3, 4, 5, 6, 7, 8}, eve);
  }
  EXPECT_EQ(f.known(prompt, ann), 4U) << "4000 pages of eve, and none of ann's is evicted";
  EXPECT_EQ(f.known({1099, 2, 3, 4, 5, 6, 7, 8}, eve), 4U) << "eve has the rest";
  EXPECT_EQ(f.pool.clients(), 2);
}

// Below its share a client evicts the oldest cached page of any client.
TEST(PrefixIndex, BelowItsShareAClientEvictsTheOldest) {
  Fixture f(6);
  const PrefixRoot ann = {.salt = "ann"}, bob = {.salt = "bob"};
  const auto old = f.leave({1, 2, 3, 4}, ann);
  const auto young = f.leave({5, 6, 7, 8}, bob);
  EXPECT_EQ(f.evict("bob"), std::vector<PageId>{old[1]});
  EXPECT_EQ(f.evict("bob"), std::vector<PageId>{young[1]}) << "bob has 2 of 3";
  EXPECT_EQ(f.evict("eve"), std::vector<PageId>{old[0]});
  EXPECT_EQ(f.pool.clients(), 1);
  EXPECT_EQ(f.evict(), std::vector<PageId>{young[0]});
  EXPECT_EQ(f.pool.clients(), 0);
}

// Many clients with one prompt each do not take the pages of one that returns with a long one.
TEST(PrefixIndex, ManyOneTimeClientsDoNotTakeEverything) {
  Fixture f(64);
  const PrefixRoot often = {.salt = "often"};
  Tokens prompt;
  for (Token i = 0; i < 40; ++i) prompt.push_back(i);  // 20 pages
  f.leave(prompt, often);
  for (Token i = 0; i < 500; ++i) {
    const std::string once = std::to_string(i);
    while (f.pool.free() < 2) f.evict(once);
    f.leave({i, i, i, i}, {.salt = once});
    ASSERT_EQ(f.known(prompt, often), 20U) << i;
    f.leave(prompt, often);
  }
  EXPECT_LE(f.pool.clients(), 64);
}

struct Recorder : PrefixListener {
  void on_stored(const std::string& model, const StoredPage& page) override {
    EXPECT_EQ(model, "m");
    EXPECT_TRUE(ids.insert(page.id).second) << "an id was used again";
    EXPECT_NE(page.id, 0U);
    EXPECT_TRUE(page.before == 0 || held.contains(page.before));
    held[page.id] = {page.before, Tokens(page.tokens.begin(), page.tokens.end())};
  }
  void on_removed(const std::string& model, uint64_t id) override {
    EXPECT_EQ(model, "m");
    EXPECT_EQ(held.erase(id), 1U) << "an unknown page was removed";
  }
  // The tokens of each page with those before it.
  std::set<Tokens> prompts() const {
    std::set<Tokens> out;
    for (const auto& [id, page] : held) {
      Tokens tokens = page.second;
      for (uint64_t before = page.first; before != 0; before = held.at(before).first) {
        const Tokens& earlier = held.at(before).second;
        tokens.insert(tokens.begin(), earlier.begin(), earlier.end());
      }
      out.insert(tokens);
    }
    return out;
  }
  std::set<uint64_t> ids;
  std::map<uint64_t, std::pair<uint64_t, Tokens>> held;
};

TEST(PrefixIndex, NotifiesAListenerOfSharedPagesOnly) {
  Recorder recorder;
  Fixture f(6);
  f.index.listen(&recorder, "m", 3);
  f.leave({1, 2, 3, 4, 9});
  f.leave({1, 2, 5, 6});
  EXPECT_EQ(recorder.prompts(), (std::set<Tokens>{{1, 2}, {1, 2, 3, 4}, {1, 2, 5, 6}}));
  const std::vector<PageId> own = f.leave({1, 2, 3, 4}, {.salt = "a client"});
  EXPECT_EQ(recorder.held.size(), 3U) << "pages of one client are not published";
  f.leave({7, 8});
  const std::set<Tokens> before = recorder.prompts();
  std::vector<PageId> freed;
  f.index.forget(own[0], &freed);
  EXPECT_EQ(recorder.prompts(), before);
  while (f.pool.cached() > 0) f.evict();
  EXPECT_EQ(recorder.prompts(), std::set<Tokens>());
  f.leave({1, 2});
  EXPECT_EQ(recorder.prompts(), (std::set<Tokens>{{1, 2}}));
  f.index.clear(&freed);
  EXPECT_EQ(recorder.prompts(), std::set<Tokens>());
}

TEST(PrefixIndex, IdsOfInstancesDiffer) {
  Recorder recorder;
  {
    Fixture ended;
    ended.index.listen(&recorder, "m", 7);
    ended.leave({1, 2, 3, 4});
    EXPECT_EQ(recorder.held.size(), 2U);
  }
  EXPECT_EQ(recorder.held.size(), 0U) << "the pages of a model that is unloaded";
  Fixture one, other;
  one.index.listen(&recorder, "m", 0);
  other.index.listen(&recorder, "m", 1);
  for (Fixture* f : {&one, &other, &one}) f->leave({1, 2, 3, 4});
  EXPECT_EQ(recorder.held.size(), 4U);
}

}  // namespace
}  // namespace tandem
