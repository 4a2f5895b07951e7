#include "engine/base/read_file.h"

#include <gtest/gtest.h>

#include "tests/temp_dir.h"

namespace tandem {
namespace {

TEST(ReadFile, ReadsTheWholeFile) {
  const test::TempDir dir;
  EXPECT_EQ(read_file(dir.write("empty", "")).value(), "");
  const std::string large(100'000, 'x');
  EXPECT_EQ(read_file(dir.write("large", large + "\n")).value(), large + "\n");
}

TEST(ReadFile, ReadsFilesWithoutASize) {
  EXPECT_FALSE(read_file("/proc/self/stat").value().empty());
}

TEST(ReadFile, MissingFilesAreNotFound) {
  const test::TempDir dir;
  const auto missing = read_file(dir.path() + "/none");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(missing.status().message()),
            dir.path() + "/none: cannot read: No such file or directory");
}

// A folder can be opened and not read.
TEST(ReadFile, AFailedReadIsAnError) {
  const test::TempDir dir;
  const auto folder = read_file(dir.path());
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(folder.status().message()), dir.path() + ": cannot read: Is a directory");
}

}  // namespace
}  // namespace tandem
