// A round gets everything that it needs, or nothing.
#include "engine/sched/reservation.h"

#include <gtest/gtest.h>

#include "tests/engine/sched/quiet_host.h"

namespace tandem::test {
namespace {

const std::vector<Token> kPrompt = {1, 2, 3, 4, 5, 6};

SequenceSpec spec_of(std::vector<CastRole> roles) {
  SequenceSpec spec;
  spec.prompt = kPrompt;
  spec.cast = make_cast(std::move(roles));
  return spec;
}

struct Round {
  Round(const std::vector<QuietHost::Model>& models, std::vector<CastRole> roles)
      : host(models), spec(spec_of(std::move(roles))) {
    caches.open();
  }
  void begin(std::vector<Need> needs) { reservation.begin_round(needs, spec.prompt); }
  bool grant() {
    if (!reservation.can_grant()) return false;
    reservation.grant(&host);
    return true;
  }
  int64_t used(int model) { return host.pools(ModelId(model))->kv.used(); }
  int64_t used_frontier(int model) { return host.pools(ModelId(model))->frontier.used(); }

  QuietHost host;
  SequenceSpec spec;
  CacheSet caches{&spec, &host};
  Reservation reservation{&caches};
};

void run_and_publish(CacheSet& caches, const std::vector<Token>& text) {
  caches.open();
  SequenceCache* cache = caches.find(caches.stage(Role::kLarge, 0).cache);
  Tree rows;
  for (const Token t : text) rows.chain(token_in(t));
  cache->reserve(static_cast<int>(text.size()), 4);
  cache->begin_pass();
  cache->append(4, rows);
  cache->end_pass();
  caches.publish(text, /*over=*/false);
}

TEST(Reservation, AllCachesOrNone) {
  Round r({{4, 0}, {1, 0}}, {{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(1), 0}});
  const Stage large = r.caches.stage(Role::kLarge, 0), small = r.caches.stage(Role::kSmall, 0);
  r.begin({{large, 6}, {small, 6}});
  std::vector<const PagePool*> lacking;
  EXPECT_FALSE(r.reservation.can_grant(&lacking));
  EXPECT_EQ(lacking, std::vector<const PagePool*>{&r.host.pools(ModelId(1))->kv});
  r.begin({{large, 6}, {small, 4}});
  EXPECT_TRUE(r.grant());
  EXPECT_EQ(r.used(0), 2);
  EXPECT_EQ(r.used(1), 1);
}

TEST(Reservation, TwoStagesOfOneCacheShareItsPages) {
  Round r({{2, 2}}, {{Role::kLarge, ModelId(0), 0}, {Role::kSmall, ModelId(0), 2}});
  r.begin({{r.caches.stage(Role::kSmall, 0), 5}, {r.caches.stage(Role::kLarge, 0), 6}});
  EXPECT_TRUE(r.grant());
  EXPECT_EQ(r.used(0), 2);
  EXPECT_EQ(r.used_frontier(0), 2);
}

TEST(Reservation, WhatTheLastRoundDidNotUseGoesBack) {
  Round r({{4, 0}}, {{Role::kLarge, ModelId(0), 0}});
  const Stage large = r.caches.stage(Role::kLarge, 0);
  r.begin({{large, 16}});
  ASSERT_TRUE(r.grant());
  EXPECT_EQ(r.used(0), 4);
  r.begin({{large, 2}});
  EXPECT_EQ(r.used(0), 0);
  EXPECT_TRUE(r.grant());
  EXPECT_EQ(r.used(0), 1);
}

TEST(Reservation, AnotherSequencesPagesAreFoundOnce) {
  Round r({{8, 0}}, {{Role::kLarge, ModelId(0), 0}});
  CacheSet other(&r.spec, &r.host);
  run_and_publish(other, kPrompt);

  EXPECT_EQ(r.reservation.first_pages(0, *r.host.pools(ModelId(0)), kPrompt), 1) << "of two";
  EXPECT_EQ(r.reservation.known_rows(0, *r.host.pools(ModelId(0)), kPrompt), 4);
  const Stage large = r.caches.stage(Role::kLarge, 0);
  r.begin({{large, 6}});
  r.reservation.adopt(kPrompt);
  EXPECT_EQ(r.caches.find(large.cache)->rows(), 4);
  EXPECT_TRUE(r.grant());
  EXPECT_EQ(r.used(0), 3) << "the first page is of both";
  EXPECT_EQ(r.host.looked_up, (std::vector<std::pair<int64_t, int64_t>>{{5, 4}}));
}

TEST(Reservation, BorrowedRowsAreReturnedIfTheirCopyDoesNotFit) {
  for (const int pages : {2, 3}) {
    Round r({{pages, 0}}, {{Role::kLarge, ModelId(0), 0}});
    {
      CacheSet other(&r.spec, &r.host);
      run_and_publish(other, {1, 2, 3, 4, 5, 6, 7, 8});
    }
    EXPECT_EQ(r.reservation.known_rows(0, *r.host.pools(ModelId(0)), kPrompt), 5);
    const Stage large = r.caches.stage(Role::kLarge, 0);
    r.begin({{large, 6}});
    r.reservation.adopt(kPrompt);
    const int rows = pages == 2 ? 4 : 5;
    EXPECT_EQ(r.caches.find(large.cache)->rows(), rows);
    EXPECT_TRUE(r.grant());
    EXPECT_EQ(r.used(0), 2);
    EXPECT_EQ(r.host.looked_up, (std::vector<std::pair<int64_t, int64_t>>{{5, rows}}));
  }
}

}  // namespace
}  // namespace tandem::test
