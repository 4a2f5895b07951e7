#include "engine/backend/torch/cpu/parallel.h"

#include <immintrin.h>

#include <memory>
#include <thread>
#include <vector>

namespace tandem::cpu {
namespace {

// Between the loops of one batch lie microseconds: waiting threads look for about 50 of them before
// they sleep.
constexpr int kSpins = 1000;

// The helpers of one thread.
//
// A job is open while its thread works on it. A helper that joins counts itself in before it looks
// whether the job is open; the owner closes the job before it looks whether anyone is in. One of
// the two sees the other (all of it sequentially consistent), so a job ends with nobody inside, and
// helpers that come late leave without touching it.
class Team {
 public:
  explicit Team(int helpers) {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { help(); });
  }

  ~Team() {
    ending_.store(true);
    bell_.fetch_add(1);
    bell_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(void (*body)(void*), void* context) {
    body_ = body;
    context_ = context;
    open_.store(true);
    bell_.fetch_add(1);
    bell_.notify_all();  // no system call where nobody sleeps
    body(context);
    open_.store(false);
    for (int i = 0; inside_.load() != 0; ++i) {
      if (i < kSpins) {
        _mm_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  void help() {
    uint32_t heard = 0;
    for (;;) {
      for (int i = 0; i < kSpins && bell_.load() == heard; ++i) _mm_pause();
      bell_.wait(heard);
      heard = bell_.load();
      if (ending_.load()) return;
      inside_.fetch_add(1);
      if (open_.load()) body_(context_);
      inside_.fetch_sub(1);
    }
  }

  // Written by the owner while the job is closed and nobody is inside.
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> bell_{0};  // jobs so far
  alignas(64) std::atomic<bool> open_{false};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> threads_;
};

thread_local std::unique_ptr<Team> team;

}  // namespace

void set_team_size(int n) {
  team.reset();
  if (n > 1) team = std::make_unique<Team>(n - 1);
}

int team_size() { return team != nullptr ? team->size() : 1; }

void internal::run_team(void (*body)(void*), void* context) { team->run(body, context); }

}  // namespace tandem::cpu
