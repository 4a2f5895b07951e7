#include "engine/async/task.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem {
namespace {

// Suspends until a test resumes `*where`.
struct Park {
  std::coroutine_handle<>* where;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> h) { *where = h; }
  void await_resume() const {}
};

struct Noted {
  Noted(std::vector<std::string>* log, std::string name) : log(log), name(std::move(name)) {}
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;
  ~Noted() { log->push_back(name); }
  std::vector<std::string>* log;
  std::string name;
};

Task<int> add(int a, int b) { co_return a + b; }

Task<int> sum_to(int n) {
  if (n == 0) co_return 0;
  auto rest = co_await sum_to(n - 1);
  auto sum = co_await add(rest, n);
  co_return sum;
}

Task<void> root_of(int n, int* out) {
  auto sum = co_await sum_to(n);
  *out = sum;
}

TEST(Task, ReturnsValuesThroughNestedFrames) {
  int out = -1;
  Task<void> task = root_of(100, &out);
  EXPECT_EQ(out, -1) << "a task is lazy";
  task.handle().resume();
  EXPECT_TRUE(task.done());
  EXPECT_EQ(out, 5050);
}

Task<void> many(int n, int* out) {
  for (int i = 0; i < n; ++i) {
    auto one = co_await add(i, 1);
    *out = one;
  }
}

TEST(Task, AwaitingInALoopTakesNoStack) {
  int out = 0;
  Task<void> task = many(100'000, &out);
  task.handle().resume();
  EXPECT_TRUE(task.done());
  EXPECT_EQ(out, 100'000);
}

Task<int> innermost(std::vector<std::string>* log, std::coroutine_handle<>* where) {
  const Noted a(log, "inner a"), b(log, "inner b");
  co_await Park{where};
  co_return 7;
}

Task<int> middle(std::vector<std::string>* log, std::coroutine_handle<>* where) {
  const Noted a(log, "middle");
  auto r = co_await innermost(log, where);
  co_return r;
}

Task<void> outer(std::vector<std::string>* log, std::coroutine_handle<>* where, int* out) {
  const Noted a(log, "outer");
  auto r = co_await middle(log, where);
  *out = r;
}

TEST(Task, DestroyingTheRootDestroysFramesInnermostFirst) {
  std::vector<std::string> log;
  std::coroutine_handle<> where;
  int out = 0;
  Task<void> task = outer(&log, &where, &out);
  task.handle().resume();
  EXPECT_FALSE(task.done());
  EXPECT_TRUE(log.empty());
  task.reset();
  EXPECT_EQ(log, (std::vector<std::string>{"inner b", "inner a", "middle", "outer"}));
  EXPECT_EQ(out, 0);
}

TEST(Task, ResumingTheInnermostFrameRunsToTheEnd) {
  std::vector<std::string> log;
  std::coroutine_handle<> where;
  int out = 0;
  Task<void> task = outer(&log, &where, &out);
  task.handle().resume();
  where.resume();
  EXPECT_TRUE(task.done());
  EXPECT_EQ(out, 7);
  EXPECT_EQ(log.size(), 4U);
}

TEST(Task, ATaskThatNeverStartedDestroysItsParameters) {
  std::vector<std::string> log;
  std::coroutine_handle<> where;
  int out = 0;
  {
    Task<void> task = outer(&log, &where, &out);
  }
  EXPECT_TRUE(log.empty());
}

TEST(Task, MovesOwnership) {
  std::vector<std::string> log;
  std::coroutine_handle<> where;
  Task<int> a = innermost(&log, &where);
  a.handle().resume();
  Task<int> b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move)
  b = Task<int>();
  EXPECT_EQ(log.size(), 2U);
}

}  // namespace
}  // namespace tandem
