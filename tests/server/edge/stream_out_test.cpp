// A stream between an engine and a call, searched: every order in which the engine's events, the
// posted work, the ends of operations and the client's going can come, also in the middle of what
// the call's thread does.
//
// The engine's methods do all they do under the lock. So what can come between is a whole event of
// the engine, wherever the call's thread lets go of the lock: there SearchMutex asks the schedule.
#include "server/edge/stream_out.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/server/edge/schedule.h"

namespace tandem {
namespace {

using test::Schedule;
using test::SearchMutex;

struct Item {
  explicit Item(std::string t, int choice = 0) : text(std::move(t)), which(choice) {}
  int index() const { return which; }
  int64_t tokens() const { return static_cast<int64_t>(text.size()); }
  int64_t bytes() const { return static_cast<int64_t>(text.size()); }
  void append(const Item& later) { text += later.text; }
  std::string text;
  int which;
};

constexpr StreamLimits kTight = {/*unread_bytes=*/1, /*unread_tokens=*/1, /*joined_bytes=*/100,
                                 /*hold_step=*/1};

// One run: the engine does its script, one event at a time, whenever the schedule says; c: a chunk,
// m: it is made, f: the end with OK and a last item, x: the end with an error.
template <bool kPlanted>
class StreamWorld final : private StreamPort<Item> {
 public:
  StreamWorld(std::string script, bool client_leaves, Schedule* schedule)
      : script_(std::move(script)), client_leaves_(client_leaves), schedule_(*schedule) {
    SearchMutex::between = [this] {
      if (on_call_thread_) interrupt();
    };
  }
  ~StreamWorld() { SearchMutex::between = {}; }

  // Empty, or what went wrong.
  std::string run() {
    out_.attach();
    while (wrong_.empty() && step()) {
    }
    if (!wrong_.empty()) return wrong_;
    if (!released_) return "stuck: the call is never released";
    if (!over_sent_ && read_ != made_) return absl::StrCat("read ", read_, " of ", made_);
    if (made_.compare(0, read_.size(), read_) != 0) return "text out of order";
    return "";
  }

 private:
  // A step that nothing else is in the middle of. False: nothing is left to do.
  bool step() {
    std::vector<std::function<void()>> can;
    if (event_ < script_.size()) can.push_back([this] { engine(); });
    if (posts_ > 0) {
      can.push_back([this] {
        --posts_;
        on_call([this] { out_.work(); });
      });
    }
    if (writing_) {
      can.push_back([this] {
        writing_ = false;
        written_ += writing_bytes_;
        on_call([this] { out_.written(true); });
      });
      if (gone_) {
        can.push_back([this] {
          writing_ = false;
          failed_write_ = true;
          on_call([this] { out_.written(false); });
        });
      }
    }
    if (finishing_) {
      can.push_back([this] {
        finishing_ = false;
        finished_ = true;
        on_call([this] { out_.finished(); });
      });
    }
    if (client_leaves_ && !gone_) can.push_back([this] { gone_ = true; });
    if (!over_ && (gone_ || finish_seen_)) {
      can.push_back([this] {
        over_ = true;
        over_sent_ = gone_;
        on_call([this] { out_.done(gone_); });
      });
    }
    if (can.empty()) return false;
    can[schedule_.choose(can.size())]();
    // After a disconnect the queue is dropped, so less is held than was made and not written.
    const auto unread = static_cast<int64_t>(made_.size() - written_);
    check(failed_write_ ? held_ >= 0 && held_ <= unread : held_ == unread,
          "the held bytes are not the unread ones");
    return true;
  }

  void on_call(const std::function<void()>& method) {
    on_call_thread_ = true;
    method();
    on_call_thread_ = false;
  }

  // As many of the engine's next events as the schedule wants, in the middle of the call's method.
  void interrupt() {
    while (event_ < script_.size() && schedule_.choose(2) == 1) {
      on_call_thread_ = false;
      engine();
      on_call_thread_ = true;
    }
  }

  void engine() {
    check(!released_ || script_[event_] != 'p', "an event for a call that is gone");
    const char event = script_[event_++];
    const std::string text(1, static_cast<char>('a' + event_));
    switch (event) {
      case 'm':
        return out_.produced(2);
      case 'c':
        made_ += text;
        return out_.put(Item(text));
      case 'f':
        made_ += text;
        return out_.end(absl::OkStatus(), Item(text));
      default:
        return out_.end(absl::UnavailableError("x"));
    }
  }

  void check(bool holds, const char* what) {
    if (!holds && wrong_.empty()) wrong_ = what;
  }
  void begin_operation() {
    check(SearchMutex::locked == 0, "an operation is started under the lock");
    check(!writing_ && !finishing_, "two operations at once");
    check(!finish_seen_, "an operation after the end");
    check(!released_, "an operation of a call that is released");
  }

  void post() override {
    check(posts_ == 0, "posted twice");
    check(!released_, "posted for a call that is released");
    ++posts_;
  }
  void pause() override {
    check(!paused_, "paused twice");
    paused_ = true;
  }
  void resume() override {
    check(paused_, "resumed twice");
    paused_ = false;
  }
  void cancel() override { check(gone_, "cancelled without a cause"); }
  void hold(int64_t bytes) override {
    check(SearchMutex::locked == 1, "hold() without the lock");
    held_ = bytes;
  }
  void write(Item item) override {
    begin_operation();
    if (!failed_write_) read_ += item.text;
    writing_ = true;
    writing_bytes_ = item.text.size();
  }
  void write_last(Item item) override {
    begin_operation();
    if (!failed_write_) read_ += item.text;
    finishing_ = finish_seen_ = true;
  }
  void finish(const absl::Status& status) override {
    begin_operation();
    check(event_ == script_.size() && status.ok() == (script_.back() == 'f'), "a wrong status");
    finishing_ = finish_seen_ = true;
  }
  void release() override {
    check(!released_, "released twice");
    check(finished_ && over_, "let go of before its operations are done");
    check(posts_ == 0, "let go of while it waits to be called");
    released_ = true;
  }

  const std::string script_;
  const bool client_leaves_;
  Schedule& schedule_;
  StreamOut<Item, SearchMutex, kPlanted> out_{kTight, this};
  size_t event_ = 0;
  bool on_call_thread_ = false;
  int posts_ = 0;
  bool writing_ = false, finishing_ = false, finish_seen_ = false, finished_ = false;
  bool failed_write_ = false;
  bool gone_ = false, over_ = false, over_sent_ = false, released_ = false;
  bool paused_ = false;
  int64_t held_ = 0;
  size_t writing_bytes_ = 0, written_ = 0;
  std::string made_, read_;
  std::string wrong_;
};

// What goes wrong in some order of this script's events, and in how many orders nothing does.
template <bool kPlanted>
std::string search(const std::string& script, bool client_leaves, int64_t* orders) {
  Schedule schedule;
  do {
    ++*orders;
    const std::string wrong = StreamWorld<kPlanted>(script, client_leaves, &schedule).run();
    if (!wrong.empty()) return wrong;
  } while (schedule.next());
  return "";
}

TEST(StreamOut, NothingGoesWrongInAnyOrder) {
  int64_t orders = 0;
  for (const char* script : {"f", "x", "cf", "cx", "mcf", "ccf", "ccx", "mcmcf", "cccf", "cccx"}) {
    EXPECT_EQ(search<false>(script, false, &orders), "") << script;
  }
  for (const char* script : {"f", "x", "cf", "cx", "mcf", "ccf", "ccx"}) {
    EXPECT_EQ(search<false>(script, true, &orders), "") << script << ", and the client leaves";
  }
  EXPECT_GT(orders, 1000);
  RecordProperty("orders", std::to_string(orders));
}

// The bug that was once there: work that came while the call's thread was about to work anyway was
// posted besides, and could come when the call was over.
TEST(StreamOut, TheSearchFindsTheMutation) {
  int64_t orders = 0;
  EXPECT_EQ(search<true>("f", false, &orders), "");
  const std::string wrong = search<true>("ccf", false, &orders);
  EXPECT_EQ(wrong, "let go of while it waits to be called");
}

// The call's thread, as the server has it: takes posts, and the ends of operations.
class CallThreadDouble final : public StreamPort<Item> {
 public:
  explicit CallThreadDouble(int64_t limit) : out({limit, limit, 1000}, this) {}

  void run() {
    for (;;) {
      std::function<void()> step;
      {
        std::unique_lock lock(mutex_);
        some_.wait(lock, [this] { return !steps_.empty(); });
        step = std::move(steps_.front());
        steps_.pop_front();
      }
      step();
      if (released_) return;
    }
  }
  void wait_until_resumed() {
    std::unique_lock lock(mutex_);
    some_.wait(lock, [this] { return !paused_; });
  }

  StreamOut<Item> out;
  std::string read;

 private:
  void later(std::function<void()> step) {
    {
      const std::lock_guard lock(mutex_);
      steps_.push_back(std::move(step));
    }
    some_.notify_all();
  }
  void set_paused(bool paused) {
    {
      const std::lock_guard lock(mutex_);
      paused_ = paused;
    }
    some_.notify_all();
  }

  void post() override {
    later([this] { out.work(); });
  }
  void pause() override { set_paused(true); }
  void resume() override { set_paused(false); }
  void cancel() override {}
  void write(Item item) override {
    read += item.text;
    later([this] { out.written(true); });
  }
  void write_last(Item item) override {
    read += item.text;
    finish(absl::OkStatus());
  }
  void finish(const absl::Status&) override {
    later([this] { out.finished(); });
    later([this] { out.done(false); });
  }
  void release() override { released_ = true; }

  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<std::function<void()>> steps_;
  bool paused_ = false;
  bool released_ = false;  // own thread
};

// Two real threads; ThreadSanitizer looks on in its build.
TEST(StreamOut, TwoThreads) {
  for (int round = 0; round < 200; ++round) {
    CallThreadDouble call(/*limit=*/8);
    std::thread thread([&] { call.run(); });
    std::string made;
    call.out.attach();
    for (int i = 0; i < 50; ++i) {
      const std::string text(static_cast<size_t>(1 + (i + round) % 3),
                             static_cast<char>('a' + i % 26));
      call.out.produced(static_cast<int64_t>(text.size()));
      call.out.put(Item(text, 0));
      made += text;
      if (i % 10 == 9) call.wait_until_resumed();
    }
    made += "end";
    call.out.end(absl::OkStatus(), Item("end", -1));
    thread.join();
    EXPECT_EQ(call.read, made);
  }
}

}  // namespace
}  // namespace tandem
