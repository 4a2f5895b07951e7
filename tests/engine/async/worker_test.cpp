#include "engine/async/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>

namespace tandem {
namespace {

TEST(Worker, OneThreadDoesOneJobAfterTheOther) {
  std::vector<int> done;  // unguarded: TSan would say
  {
    Worker worker;
    for (int i = 0; i < 1000; ++i) worker.post([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

TEST(Worker, ManyThreadsPost) {
  int sum = 0;  // of one thread
  {
    Worker worker;
    std::vector<std::jthread> posters;
    for (int t = 0; t < 4; ++t) {
      posters.emplace_back([&] {
        for (int i = 0; i < 500; ++i) worker.post([&sum] { ++sum; });
      });
    }
  }
  EXPECT_EQ(sum, 2000);
}

TEST(Worker, SeveralThreadsWorkAtOnce) {
  std::latch all(3);
  Worker worker(3);
  std::vector<std::future<void>> ends;
  for (int i = 0; i < 3; ++i) {
    std::promise<void> end;
    ends.push_back(end.get_future());
    worker.post([&all, end = std::move(end)]() mutable {
      all.arrive_and_wait();  // hangs unless each has a thread
      end.set_value();
    });
  }
  for (auto& end : ends) end.wait();
}

TEST(Worker, EndsWhenAllIsDoneThatJobsPosted) {
  for (const int threads : {1, 2}) {
    std::atomic<int> done{0};
    {
      std::function<void(int)> chain;  // outlives the jobs
      Worker worker(threads);
      chain = [&](int left) {
        ++done;
        if (left > 0) worker.post([&chain, left] { chain(left - 1); });
      };
      worker.post([&] { chain(100); });
    }
    EXPECT_EQ(done, 101) << threads;
  }
}

TEST(Worker, SetsUpAndTearsDownOnItsThreads) {
  std::mutex mutex;
  std::vector<std::thread::id> set_up, torn_down;
  std::thread::id at_work;
  const auto note = [&mutex](std::vector<std::thread::id>* to) {
    const std::lock_guard lock(mutex);
    to->push_back(std::this_thread::get_id());
  };
  {
    Worker worker(1, [&](const std::function<void()>& work) {
      note(&set_up);
      work();
      note(&torn_down);
    });
    worker.post([&] { at_work = std::this_thread::get_id(); });
  }
  EXPECT_EQ(set_up, std::vector{at_work});
  EXPECT_EQ(torn_down, std::vector{at_work});
  set_up.clear();
  {
    const Worker idle(3, [&](const std::function<void()>& work) {
      note(&set_up);
      work();
    });
  }
  EXPECT_EQ(set_up.size(), 3U);
}

// Destructors of a job's captures may post: they run before the next job, without a lock.
TEST(Worker, AJobIsDestroyedWhenItIsDone) {
  std::vector<int> order;
  {
    Worker worker;
    struct Posts {
      Worker* worker;
      std::vector<int>* order;
      Posts(Worker* w, std::vector<int>* o) : worker(w), order(o) {}
      Posts(const Posts&) = delete;
      ~Posts() {
        order->push_back(1);
        worker->post([o = order] { o->push_back(3); });
      }
    };
    worker.post([&] {
      worker.post([held = std::make_unique<Posts>(&worker, &order)] {});
      worker.post([&order] { order.push_back(2); });
    });
  }
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
}

}  // namespace
}  // namespace tandem
