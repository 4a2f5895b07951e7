// Tests with threads run under TSan: a thread of a test whose file is not among THREADS of
// tests/CMakeLists.txt aborts the program.
#include <gtest/gtest.h>

#include <thread>

#include "tests/sanitized.h"

namespace tandem {
namespace {

TEST(FilesWithThreadsDeathTest, AThreadOfAnotherFileAborts) {
  if (test::kSanitized) GTEST_SKIP() << "only the build without sanitizers looks at files";
  EXPECT_DEATH(std::thread([] {}).join(),
               "A test of \".*/files_with_threads_test.cpp\" starts a thread: add the file");
}

}  // namespace
}  // namespace tandem
