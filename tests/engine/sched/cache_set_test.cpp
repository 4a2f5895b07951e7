// The caches of a sequence, and their roles.
#include "engine/sched/cache_set.h"

#include <gtest/gtest.h>

#include "tests/engine/sched/quiet_host.h"

namespace tandem::test {
namespace {

const std::vector<Token> kCached = {1, 2, 3, 4, 5, 6};

SequenceSpec spec(std::vector<CastRole> roles) {
  SequenceSpec s;
  s.prompt = kCached;
  s.cast = make_cast(std::move(roles));
  return s;
}

// Runs a pass through all layers.
void run(SequenceCache* cache, std::span<const Token> tokens, int to = 4) {
  Tree rows;
  for (const Token t : tokens) rows.chain(token_in(t));
  cache->reserve(cache->rows() + static_cast<int>(tokens.size()), to);
  cache->begin_pass();
  cache->append(to, rows);
  cache->end_pass();
}

TEST(CacheSet, AModelHasOneCacheWhateverItsRoles) {
  QuietHost host(QuietHost::Models(2));
  const SequenceSpec s = spec({{Role::kLarge, ModelId(0), 0},
                               {Role::kSmall, ModelId(0), 2},
                               {Role::kWorker, ModelId(1), 0}});
  CacheSet caches(&s, &host);
  caches.open();
  const Stage large = caches.stage(Role::kLarge, 0), small = caches.stage(Role::kSmall, 0);
  EXPECT_EQ(caches.all().size(), 2U);
  EXPECT_EQ(large.cache, small.cache);
  EXPECT_EQ(large.to, 4);
  EXPECT_EQ(small.to, 2);
  const SequenceCache& shared = *caches.find(large.cache);
  EXPECT_EQ(caches.role_of(shared, 4), Role::kLarge);
  EXPECT_EQ(caches.role_of(shared, 2), Role::kSmall);
  EXPECT_TRUE(caches.runs_sequence(large.cache));
  EXPECT_FALSE(caches.runs_sequence(caches.stage(Role::kWorker, 0).cache));
}

TEST(CacheSet, AForkPlaysThePartOfItsOriginAndCanBeDropped) {
  QuietHost host(QuietHost::Models(1));
  const SequenceSpec s = spec({{Role::kLarge, ModelId(0), 0}});
  CacheSet caches(&s, &host);
  caches.open();
  const CacheId origin = caches.stage(Role::kLarge, 0).cache;
  run(caches.find(origin), kCached);
  const CacheId fork = caches.fork(origin);
  EXPECT_EQ(caches.find(fork)->rows(), 6);
  EXPECT_EQ(caches.role_of(*caches.find(fork), 4), Role::kLarge);
  const PagePool* pools = &host.pools(ModelId(0))->kv;
  CacheSet::PageCounts counts;
  caches.count_pages_of({&pools, 1}, &counts);
  EXPECT_EQ(counts.size(), 2U);
  for (const auto& [page, times] : counts) EXPECT_EQ(times, 2);
  caches.drop(fork);
  EXPECT_EQ(caches.all().size(), 1U);
  caches.clear();
  EXPECT_FALSE(caches.holds_pages());
}

TEST(CacheSetDeathTest, APassToALayerOfNoRoleIsABug) {
  QuietHost host(QuietHost::Models(1));
  const SequenceSpec s = spec({{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(0), 2}});
  CacheSet caches(&s, &host);
  caches.open();
  const SequenceCache& cache = *caches.find(caches.stage(Role::kLarge, 0).cache);
  EXPECT_DEATH(static_cast<void>(caches.role_of(cache, 3)), "no role runs to this layer");
}

TEST(CacheSet, AFollowerGetsAllRowsOfThePromptButTheLast) {
  QuietHost host(QuietHost::Models(1));
  const SequenceSpec s = spec({{Role::kLarge, ModelId(0), 0}});
  CacheSet leader(&s, &host), follower(&s, &host);
  leader.open();
  follower.open();
  run(leader.find(leader.stage(Role::kLarge, 0).cache), kCached);
  follower.adopt(leader);
  const CacheId mine = follower.stage(Role::kLarge, 0).cache;
  EXPECT_EQ(follower.find(mine)->rows(), 5);
  EXPECT_TRUE(follower.take_adopted(mine));
  EXPECT_FALSE(follower.take_adopted(mine)) << "once";
}

TEST(CacheSet, TheAdapterIsThatOfTheModelsRoles) {
  QuietHost host(QuietHost::Models(2));
  SequenceSpec s = spec({{Role::kLarge, ModelId(0), 0},
                         {Role::kSmall, ModelId(0), 2},
                         {Role::kWorker, ModelId(1), 0}});
  s.cast = with_lora(*s.cast, LoraId(5));
  CacheSet caches(&s, &host);
  caches.open();
  const CacheId large = caches.stage(Role::kLarge, 0).cache;
  run(caches.find(large), kCached);
  EXPECT_EQ(caches.lora_of(*caches.find(large)), LoraId(5));
  EXPECT_EQ(caches.lora_of(*caches.find(caches.fork(large))), LoraId(5));
  EXPECT_EQ(caches.lora_of(*caches.find(caches.stage(Role::kWorker, 0).cache)), LoraId());
  EXPECT_EQ(caches.root(ModelId(0)).lora, LoraId(5));
  EXPECT_EQ(caches.root(ModelId(1)).lora, LoraId());
}

TEST(CacheSet, SequencesOfOneSaltFindEachOthersPages) {
  QuietHost host(QuietHost::Models(1));
  SequenceSpec s = spec({{Role::kLarge, ModelId(0), 0}});
  CacheSet a(&s, &host);
  a.open();
  run(a.find(a.stage(Role::kLarge, 0).cache), kCached);
  a.publish(kCached, /*over=*/false);
  const PrefixIndex& known = host.pools(ModelId(0))->prefixes;
  EXPECT_EQ(known.find(a.root(ModelId(0)), kCached, 1).size(), 1U);
  s.salt = "another";
  EXPECT_TRUE(known.find(CacheSet(&s, &host).root(ModelId(0)), kCached, 1).empty());
}

}  // namespace
}  // namespace tandem::test
