#include "server/edge/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

class MemoryLimit : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return dir_.path(); }

 private:
  const test::TempDir dir_;
};

TEST_F(MemoryLimit, IsTheMachinesWithoutGroups) {
  EXPECT_EQ(available_memory(root()), 0);
  write("/proc/meminfo", "MemFree: 5 kB\nMemTotal:        2048 kB\n");
  EXPECT_EQ(available_memory(root()), 2048 << 10);
}

TEST_F(MemoryLimit, IsTheLeastOfAGroupAndThoseAroundIt) {
  write("/proc/meminfo", "MemTotal: 2048 kB\n");
  write("/proc/self/cgroup", "0::/system.slice/tandem.service\n");
  write("/sys/fs/cgroup/system.slice/tandem.service/memory.max", "max\n");
  EXPECT_EQ(available_memory(root()), 2048 << 10);
  write("/sys/fs/cgroup/system.slice/tandem.service/memory.max", "1000000\n");
  EXPECT_EQ(available_memory(root()), 1000000);
  write("/sys/fs/cgroup/system.slice/memory.max", "900000\n");
  EXPECT_EQ(available_memory(root()), 900000);
}

TEST_F(MemoryLimit, ReadsTheGroupOfAContainer) {
  write("/proc/meminfo", "MemTotal: 2048 kB\n");
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "800000\n");
  EXPECT_EQ(available_memory(root()), 800000);
}

TEST_F(MemoryLimit, ReadsGroupsOfVersion1) {
  write("/proc/meminfo", "MemTotal: 2048 kB\n");
  write("/proc/self/cgroup", "7:cpu,cpuacct:/docker/ab\n3:rdma,memory:/docker/ab\n");
  write("/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available_memory(root()), 2048 << 10);
  write("/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", "700000\n");
  EXPECT_EQ(available_memory(root()), 700000);
}

TEST_F(MemoryLimit, IgnoresWhatItCannotRead) {
  write("/proc/meminfo", "MemTotal: many kB\n");
  write("/proc/self/cgroup", "nonsense\n0::relative\n");
  write("/sys/fs/cgroup/memory.max", "-1\n");
  EXPECT_EQ(available_memory(root()), 0);
}

}  // namespace
}  // namespace tandem
