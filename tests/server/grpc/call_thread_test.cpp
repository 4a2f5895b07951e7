#include "server/grpc/call_thread.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>

namespace tandem {
namespace {

// A server with nothing but a queue.
struct Fixture {
  Fixture() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials());
    thread = std::make_unique<CallThread>(builder.AddCompletionQueue());
    server = builder.BuildAndStart();
    thread->start();
  }
  ~Fixture() {
    server->Shutdown();
    thread->stop();
  }
  std::unique_ptr<CallThread> thread;
  std::unique_ptr<grpc::Server> server;
};

struct Count final : CallThread::Work {
  void work() override {
    if (where == std::thread::id()) where = std::this_thread::get_id();
    same = same && where == std::this_thread::get_id();
    ++times;
    done.fetch_add(1);
  }
  std::thread::id where;
  bool same = true;
  int times = 0;
  std::atomic<int> done{0};
};

TEST(CallThread, DoesEachWorkOnceForEachPostOnItsOwnThread) {
  constexpr int kPosters = 4, kRounds = 2000;
  std::deque<Count> works(kPosters);
  Fixture f;
  std::vector<std::thread> posters;
  for (int p = 0; p < kPosters; ++p) {
    posters.emplace_back([&, p] {
      Count& work = works[static_cast<size_t>(p)];
      for (int i = 0; i < kRounds; ++i) {
        f.thread->post(&work);
        // Every other time the thread may have gone to sleep before it is asked again.
        while (work.done.load() <= i) std::this_thread::yield();
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  for (const Count& work : works) {
    EXPECT_EQ(work.times, kRounds);
    EXPECT_TRUE(work.same);
    EXPECT_EQ(work.where, works.front().where);
    EXPECT_NE(work.where, std::this_thread::get_id());
  }
}

TEST(CallThread, TakesWhatIsDoneOnItsQueue) {
  std::promise<bool> done;
  CallThread::Completion completion{
      [](void* whom, bool ok) { static_cast<std::promise<bool>*>(whom)->set_value(ok); }, &done};
  Fixture f;
  grpc::Alarm alarm;
  alarm.Set(f.thread->queue(), gpr_time_0(GPR_CLOCK_MONOTONIC), &completion);
  EXPECT_TRUE(done.get_future().get());
}

TEST(CallThread, StopsWhenTheLastCallHasLeft) {
  std::atomic<bool> left{false};
  std::promise<void> stopping;
  Fixture f;
  f.thread->enter();
  std::thread call([&] {
    stopping.get_future().wait();
    left.store(true);
    f.thread->leave();
  });
  f.server->Shutdown();
  stopping.set_value();
  f.thread->stop();
  EXPECT_TRUE(left.load());
  call.join();
}

}  // namespace
}  // namespace tandem
