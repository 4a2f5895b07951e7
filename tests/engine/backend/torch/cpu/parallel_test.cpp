#include "engine/backend/torch/cpu/parallel.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

namespace tandem {
namespace {

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  pthread_getaffinity_np(pthread_self(), sizeof set, &set);
  return set;
}

TEST(CpuTeam, HasTheRequestedSize) {
  EXPECT_EQ(cpu::team_size(), 1);
  cpu::set_team_size(3);
  EXPECT_EQ(cpu::team_size(), 3);
  std::thread([] { EXPECT_EQ(cpu::team_size(), 1); }).join();  // teams are per thread
  cpu::set_team_size(1);
  EXPECT_EQ(cpu::team_size(), 1);
}

TEST(CpuTeam, CoversEveryIndexOnce) {
  cpu::set_team_size(2);
  for (const int64_t n : {0, 1, 5, 64, 1000, 200000}) {
    for (const int64_t grain : {1, 7, 2000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      cpu::parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)]++;
      });
      for (const auto& s : seen) ASSERT_EQ(s, 1);
    }
  }
  cpu::set_team_size(1);
}

// A thread starts with the same part of a repeated loop, for cache locality.
TEST(CpuTeam, SharesStayWithTheirThreads) {
  constexpr int kTeam = 3;
  cpu::set_team_size(kTeam);
  std::thread::id first[kTeam];
  for (int i = 0; i < 50; ++i) {
    std::thread::id ran[kTeam];
    std::atomic<int> begun{0};
    cpu::parallel_for(kTeam, 1, [&](int64_t begin, int64_t) {
      ran[begin] = std::this_thread::get_id();
      for (++begun; begun < kTeam;) std::this_thread::yield();  // all threads have started
    });
    EXPECT_EQ(ran[0], std::this_thread::get_id());
    for (int m = 0; m < kTeam; ++m) {
      if (i == 0) first[m] = ran[m];
      EXPECT_EQ(ran[m], first[m]) << m;
    }
  }
  cpu::set_team_size(1);
}

// Closures of any size, including ones that own resources.
TEST(CpuTeam, RunsAnyClosure) {
  cpu::set_team_size(2);
  std::array<int, 100> large;
  std::iota(large.begin(), large.end(), 0);
  const std::vector<int> owned(large.begin(), large.end());
  std::atomic<int> sum{0};
  auto* to = &sum;
  cpu::parallel_for(100, 1,
                    [large, to](int64_t i, int64_t) { *to += large[static_cast<size_t>(i)]; });
  cpu::parallel_for(100, 1,
                    [owned, to](int64_t i, int64_t) { *to += owned[static_cast<size_t>(i)]; });
  cpu::parallel_for(100, 1, [to](int64_t i, int64_t) { *to += static_cast<int>(i); });
  EXPECT_EQ(sum, 3 * 4950);
  cpu::set_team_size(1);
}

// Many more threads than processors, with several owners.
TEST(CpuTeam, SurvivesOversubscription) {
  std::vector<std::thread> owners;
  for (int o = 0; o < 4; ++o) {
    owners.emplace_back([] {
      cpu::set_team_size(6);
      for (int i = 0; i < 200; ++i) {
        std::atomic<int64_t> sum{0};
        cpu::parallel_for(100, 3, [&](int64_t begin, int64_t end) {
          for (int64_t j = begin; j < end; ++j) sum += j;
        });
        ASSERT_EQ(sum, 4950);
      }
    });
  }
  for (std::thread& t : owners) t.join();
}

TEST(CpuTeam, PinnedThreadsUseOneProcessorEachAndRestoreAffinity) {
  const cpu_set_t before = affinity();
  const int processors = CPU_COUNT(&before);
  cpu::set_team_size(2, 1);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int> used;
  // Repeat until both have taken part: a helper may start late.
  for (int i = 0; i < 100000 && threads.size() < 2; ++i) {
    cpu::parallel_for(8, 1, [&](int64_t, int64_t) {
      const cpu_set_t mine = affinity();
      EXPECT_EQ(CPU_COUNT(&mine), 1);
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &mine)) used.insert(cpu);
      }
      std::this_thread::yield();
    });
  }
  EXPECT_EQ(threads.size(), 2);
  EXPECT_EQ(used.size(), static_cast<size_t>(std::min(2, processors)));
  cpu::set_team_size(1);
  const cpu_set_t after = affinity();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

}  // namespace
}  // namespace tandem
