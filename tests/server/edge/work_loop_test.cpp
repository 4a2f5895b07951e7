// A loop and those that post to it, searched: every order in which posts, the wake-ups that follow
// them and events of the queue can come, wherever the loop's thread lets go of the lock.
#include "server/edge/work_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/edge/schedule.h"

namespace tandem {
namespace {

using test::Schedule;
using test::SearchMutex;

// One run: `posts` are posted, one after the other where they are of one work, and `events` come.
template <bool kPlanted>
class World {
 public:
  World(int posts, int events, Schedule* schedule)
      : posts_(posts), events_(events), schedule_(*schedule) {
    SearchMutex::between = [this] { interrupt(); };
  }
  ~World() { SearchMutex::between = {}; }

  // Empty, or what went wrong.
  std::string run() {
    loop_.run();
    if (wrong_.empty() && done_ != posted_) wrong_ = "asleep, and something is posted";
    if (wrong_.empty() && taken_ != sent_) wrong_ = "events are left";
    return wrong_;
  }

  // --- The queue, as the loop sees it.
  enum class Event : std::uint8_t { kWake, kOther };
  bool wait(Event* event) {
    check(SearchMutex::locked == 0, "waits under the lock");
    asleep_ = true;
    while (queue_.empty() && step()) {
    }
    asleep_ = false;
    return poll(event);
  }
  bool poll(Event* event) {
    if (queue_.empty()) return false;
    *event = queue_.front();
    queue_.pop_front();
    if (*event == Event::kWake) wake_there_ = false;
    return true;
  }
  void wake() {
    check(SearchMutex::locked == 0, "wakes under the lock");
    ++wakes_;  // comes when the schedule says
    check(wakes_ == 1 && !wake_there_, "woken twice");
  }
  bool handle(const Event& event) {
    taken_ += event == Event::kOther ? 1 : 0;
    return event == Event::kOther;
  }

 private:
  struct Counted final : PostedWork {
    explicit Counted(World* w) : world(*w) {}
    void work() override {
      world.check(waiting, "done without a request");
      waiting = false;
      ++world.done_;
    }
    World& world;
    bool waiting = false;
  };

  enum class Can : std::uint8_t { kPost, kSend, kWake };
  std::vector<Can> others_can() const {
    std::vector<Can> can;
    if (posts_ > 0 && (!works_[0].waiting || !works_[1].waiting)) can.push_back(Can::kPost);
    if (events_ > 0) can.push_back(Can::kSend);
    if (wakes_ > 0) can.push_back(Can::kWake);
    return can;
  }

  // Something that others do; false: there is nothing left for them to do.
  bool step() {
    const std::vector<Can> can = others_can();
    if (can.empty()) return false;
    switch (can[schedule_.choose(can.size())]) {
      case Can::kPost: {
        --posts_;
        ++posted_;
        Counted& work = works_[works_[0].waiting ? 1 : 0];
        work.waiting = true;
        const bool was = busy_;
        busy_ = true;  // it is they that let go of the lock
        loop_.post(&work);
        busy_ = was;
        break;
      }
      case Can::kSend:
        --events_;
        ++sent_;
        queue_.push_back(Event::kOther);
        break;
      case Can::kWake:
        --wakes_;
        wake_there_ = true;
        queue_.push_back(Event::kWake);
        break;
    }
    return true;
  }

  // The loop's thread lets go of the lock: as much of what others do as the schedule wants.
  void interrupt() {
    if (busy_ || asleep_) return;
    while (!others_can().empty() && schedule_.choose(2) == 1) step();
  }

  void check(bool holds, const char* what) {
    if (!holds && wrong_.empty()) wrong_ = what;
  }

  int posts_, events_;  // still to come
  Schedule& schedule_;
  WorkLoop<World, SearchMutex, kPlanted> loop_{this};
  Counted works_[2] = {Counted(this), Counted(this)};
  std::deque<Event> queue_;
  int wakes_ = 0;  // on their way
  bool wake_there_ = false;
  bool busy_ = false, asleep_ = false;
  int posted_ = 0, done_ = 0, sent_ = 0, taken_ = 0;
  std::string wrong_;
};

template <bool kPlanted>
std::string search(int posts, int events, int64_t* orders) {
  Schedule schedule;
  do {
    ++*orders;
    const std::string wrong = World<kPlanted>(posts, events, &schedule).run();
    if (!wrong.empty()) return wrong;
  } while (schedule.next());
  return "";
}

TEST(WorkLoop, LosesNothingInAnyOrder) {
  int64_t orders = 0;
  for (int posts = 0; posts <= 3; ++posts) {
    for (int events = 0; posts + events <= 3; ++events) {
      EXPECT_EQ(search<false>(posts, events, &orders), "") << posts << ", " << events;
    }
  }
  EXPECT_GT(orders, 1000);
  RecordProperty("orders", std::to_string(orders));
}

// Asleep a moment after it has looked whether there is anything to do.
TEST(WorkLoop, TheSearchFindsTheMutation) {
  int64_t orders = 0;
  EXPECT_EQ(search<true>(1, 0, &orders), "asleep, and something is posted");
}

// A queue as gRPC has it.
class RealQueue {
 public:
  using Event = int;  // 0: of wake()
  bool wait(Event* event) {
    std::unique_lock lock(mutex_);
    some_.wait(lock, [this] { return !events_.empty() || closed_; });
    return pop_locked(event);
  }
  bool poll(Event* event) {
    const std::lock_guard lock(mutex_);
    return pop_locked(event);
  }
  void wake() { put(0); }
  bool handle(Event event) {
    taken += event;
    return event != 0;
  }
  void put(Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
    }
    some_.notify_all();
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    some_.notify_all();
  }
  int taken = 0;

 private:
  bool pop_locked(Event* event) {
    if (events_.empty()) return false;
    *event = events_.front();
    events_.pop_front();
    return true;
  }
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<Event> events_;
  bool closed_ = false;
};

struct CountedWork final : PostedWork {
  void work() override {
    done.fetch_add(1);
    done.notify_all();
  }
  std::atomic<int> done{0};
};

TEST(WorkLoop, OnRealThreads) {
  constexpr int kRounds = 1000;
  RealQueue queue;
  WorkLoop<RealQueue> loop(&queue);
  std::thread own([&] { loop.run(); });
  CountedWork works[2];
  std::vector<std::thread> posters;
  for (CountedWork& work : works) {
    posters.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        loop.post(&work);
        if (i % 3 == 0) queue.put(1);
        work.done.wait(i);
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  queue.close();
  own.join();
  for (const CountedWork& work : works) EXPECT_EQ(work.done.load(), kRounds);
  EXPECT_EQ(queue.taken, 2 * ((kRounds + 2) / 3));
}

}  // namespace
}  // namespace tandem
