#include "server/observe/process_stats.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

using Names = std::set<std::string>;

Names names_of(const ProcessStats& stats) {
  Names names;
  for (const auto& family : process_families(stats)) names.insert(family.name);
  return names;
}

class ProcessStatsTest : public testing::Test {
 protected:
  ProcessStatsTest() {
    std::filesystem::create_directories(proc_ + "/self/fd");
    for (const char* fd : {"0", "1", "2"}) std::ofstream(proc_ + "/self/fd/" + fd);
    // A name may hold what separates the fields.
    std::ofstream(proc_ + "/self/stat")
        << "42 (a) b (c) R 1 42 42 0 -1 4194304 9 8 7 6 300 200 5 4 20 "
           "0 17 0 1000 4096000 25 18446744073709551615 1 1 0\n";
    std::ofstream(proc_ + "/stat") << "cpu 1 2 3\nbtime 1700000000\nprocesses 7\n";
  }

  // Makes a path a folder, which can be opened and not read.
  void break_file(const std::string& name) {
    std::filesystem::remove_all(proc_ + name);
    std::filesystem::create_directories(proc_ + name);
  }

  test::TempDir dir_;
  const std::string proc_ = dir_.path() + "/proc";
};

TEST_F(ProcessStatsTest, ReadsWhatTheKernelWrites) {
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const ProcessStats now = read_process(proc_);
  EXPECT_TRUE(now.error.ok()) << now.error;
  EXPECT_DOUBLE_EQ(now.cpu_seconds.value(), 500 / ticks);
  EXPECT_DOUBLE_EQ(now.start_time_seconds.value(), 1700000000 + 1000 / ticks);
  EXPECT_EQ(now.virtual_bytes, 4096000);
  EXPECT_EQ(now.resident_bytes, 25 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(now.threads, 17);
  EXPECT_EQ(now.open_fds, 3);
  EXPECT_GT(now.max_fds, 3);
}

TEST_F(ProcessStatsTest, LeavesOutValuesWhoseReadFails) {
  break_file("/self/stat");
  const ProcessStats now = read_process(proc_);
  EXPECT_EQ(std::string(now.error.message()), proc_ + "/self/stat: cannot read: Is a directory");
  EXPECT_EQ(names_of(now), (Names{"process_open_fds", "process_max_fds"}));
}

TEST_F(ProcessStatsTest, LeavesOutTheStartTimeWithoutTheTimeOfBoot) {
  break_file("/stat");
  const ProcessStats now = read_process(proc_);
  EXPECT_EQ(std::string(now.error.message()), proc_ + "/stat: cannot read: Is a directory");
  EXPECT_FALSE(now.start_time_seconds.has_value());
  EXPECT_EQ(now.threads, 17);
}

TEST_F(ProcessStatsTest, ShortFilesAreErrors) {
  std::ofstream(proc_ + "/self/stat") << "42 (name) R 1 42\n";
  EXPECT_EQ(std::string(read_process(proc_).error.message()),
            proc_ + "/self/stat: unexpected content");
}

TEST_F(ProcessStatsTest, SaysNothingWhereThereIsNoProc) {
  const ProcessStats now = read_process(proc_ + "/nowhere");
  EXPECT_FALSE(now.error.ok());
  EXPECT_EQ(names_of(now), (Names{"process_max_fds"}));
}

TEST(ProcessStats, KnowsThisProcess) {
  const ProcessStats now = read_process();
  EXPECT_TRUE(now.error.ok()) << now.error;
  EXPECT_GT(now.resident_bytes, 1 << 20);
  EXPECT_GE(now.threads, 1);
  EXPECT_GT(now.open_fds, 0);
  EXPECT_GT(now.start_time_seconds, 1.6e9);
  EXPECT_EQ(names_of(now), (Names{"process_cpu_seconds_total", "process_start_time_seconds",
                                  "process_virtual_memory_bytes", "process_resident_memory_bytes",
                                  "process_threads", "process_open_fds", "process_max_fds"}));
}

}  // namespace
}  // namespace tandem
