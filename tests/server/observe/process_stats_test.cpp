#include "server/observe/process_stats.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace tandem {
namespace {

TEST(ProcessStats, ReadsWhatTheKernelWrites) {
  const std::string proc = testing::TempDir() + "proc";
  std::filesystem::create_directories(proc + "/self/fd");
  for (const char* fd : {"0", "1", "2"}) std::ofstream(proc + "/self/fd/" + fd);
  // A name may hold what separates the fields.
  std::ofstream(proc + "/self/stat")
      << "42 (a) b (c) R 1 42 42 0 -1 4194304 9 8 7 6 300 200 5 4 20 "
         "0 17 0 1000 4096000 25 18446744073709551615 1 1 0\n";
  std::ofstream(proc + "/stat") << "cpu 1 2 3\nbtime 1700000000\nprocesses 7\n";
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));

  const auto now = read_process(proc);
  ASSERT_TRUE(now.has_value());
  EXPECT_DOUBLE_EQ(now->cpu_seconds, 500 / ticks);
  EXPECT_DOUBLE_EQ(now->start_time_seconds, 1700000000 + 1000 / ticks);
  EXPECT_EQ(now->virtual_bytes, 4096000);
  EXPECT_EQ(now->resident_bytes, 25 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(now->threads, 17);
  EXPECT_EQ(now->open_fds, 3);
  EXPECT_GT(now->max_fds, 3);
}

TEST(ProcessStats, SaysNothingWhereThereIsNoProc) {
  EXPECT_FALSE(read_process(testing::TempDir() + "nowhere").has_value());
}

TEST(ProcessStats, KnowsThisProcess) {
  const auto now = read_process();
  ASSERT_TRUE(now.has_value());
  EXPECT_GT(now->resident_bytes, 1 << 20);
  EXPECT_GE(now->threads, 1);
  EXPECT_GT(now->open_fds, 0);
  EXPECT_GT(now->start_time_seconds, 1.6e9);
  std::set<std::string> names;
  for (const auto& family : process_families(*now)) names.insert(family.name);
  EXPECT_EQ(names,
            (std::set<std::string>{"process_cpu_seconds_total", "process_start_time_seconds",
                                   "process_virtual_memory_bytes", "process_resident_memory_bytes",
                                   "process_threads", "process_open_fds", "process_max_fds"}));
}

}  // namespace
}  // namespace tandem
