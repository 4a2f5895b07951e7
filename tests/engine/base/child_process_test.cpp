#include "engine/base/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/match.h"

namespace tandem {
namespace {

using testing::HasSubstr;

TEST(ChildProcess, OutputAndStatus) {
  auto child = ChildProcess::start({"sh", "-c", "echo \"$1\" $ADDED; exit 3", "sh", "a b"},
                                   {.capture_output = true, .environment = {{"ADDED", "c"}}});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->read_output(), "a b c\n");
  EXPECT_EQ(child->wait(), 3);
  EXPECT_EQ(child->poll(), 3);
}

TEST(ChildProcess, NoSuchProgram) {
  const absl::Status status = ChildProcess::start({"no-such-program-of-tandem"}, {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no-such-program-of-tandem"));
}

TEST(ChildProcess, SignalsAndMasks) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  auto child = ChildProcess::start({"cat", "/dev/zero"}, {.capture_output = true});
  sigprocmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->poll(), std::nullopt);  // blocked: its output is not read
  ChildProcess moved = *std::move(child);
  moved.terminate();
  EXPECT_EQ(moved.wait(), 128 + SIGTERM);
}

TEST(ChildProcess, EndsWithItsObject) {
  auto child = ChildProcess::start({"cat", "/dev/zero"}, {.capture_output = true});
  ASSERT_TRUE(child.ok()) << child.status();
  const ChildProcess ends =
      *std::move(child);  // its destructor would wait forever without a signal
}

TEST(SiblingProgram, IsBesideThisOne) {
  EXPECT_EQ(sibling_program("no-such-program-of-tandem"), "no-such-program-of-tandem");
  EXPECT_TRUE(absl::EndsWith(sibling_program("test_base"), "/test_base"));
}

}  // namespace
}  // namespace tandem
