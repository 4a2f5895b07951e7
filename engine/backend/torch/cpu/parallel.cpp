#include "engine/backend/torch/cpu/parallel.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace tandem::cpu {
namespace {

// Between the loops of one batch lie microseconds.
constexpr auto kSpinTime = std::chrono::microseconds(30);

// Threads in all teams of the process.
std::atomic<int> team_threads{0};

int processors() {
  static const int kCount = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return kCount;
}

bool crowded() { return team_threads.load(std::memory_order_relaxed) > processors(); }

// Looks for some microseconds whether `done`. To spin on a processor that others need would cost
// them, and us, a time slice.
template <class F>
bool spin_until(const F& done) {
  if (done()) return true;
  if (crowded()) return false;
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  pthread_getaffinity_np(pthread_self(), sizeof set, &set);
  return set;
}

// To the n-th processor of a set, counted around. Only a wish.
void pin(pthread_t thread, const cpu_set_t& allowed, int n) {
  const int count = CPU_COUNT(&allowed);
  if (count == 0) return;
  n %= count;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || n-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(thread, sizeof one, &one);
    return;
  }
}

// Puts the calling thread elsewhere if it is on this processor; it may come back.
void leave(int cpu, const cpu_set_t& allowed) {
  if (cpu < 0 || sched_getcpu() != cpu || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  pthread_setaffinity_np(pthread_self(), sizeof others, &others);
  pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
}

// The helpers of one thread.
//
// A job is open while its thread works on it. A helper that joins counts itself in before it looks
// whether the job is open; the owner closes the job before it looks whether anyone is in. One of
// the two sees the other (all of it sequentially consistent), so a job ends with nobody inside, and
// helpers that come late leave without touching it.
class Team {
 public:
  Team(int size, int first_cpu) : first_cpu_(first_cpu), before_(affinity()) {
    team_threads += size;
    for (int i = 1; i < size; ++i) {
      threads_.emplace_back([this] { help(); });
      if (first_cpu >= 0) pin(threads_.back().native_handle(), before_, first_cpu + i);
    }
    if (first_cpu >= 0) pin(pthread_self(), before_, first_cpu);
  }

  ~Team() {
    ending_.store(true);
    bell_.fetch_add(1);
    bell_.notify_all();
    for (std::thread& t : threads_) t.join();
    team_threads -= size();
    if (first_cpu_ >= 0) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(void (*body)(void*), void* context) {
    body_ = body;
    context_ = context;
    owner_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
    open_.store(true);
    bell_.fetch_add(1);
    bell_.notify_all();  // no system call where nobody sleeps
    body(context);
    open_.store(false);
    while (!spin_until([this] { return inside_.load() == 0; })) std::this_thread::yield();
  }

 private:
  void help() {
    uint32_t heard = 0;
    for (;;) {
      if (!spin_until([&] { return bell_.load() != heard; })) {
        bell_.wait(heard);
        // A busy machine wakes a thread on the processor of who wakes it. There it waits until its
        // owner has done the work alone, and again the next time.
        if (first_cpu_ < 0 && !crowded()) leave(owner_cpu_.load(), before_);
      }
      heard = bell_.load();
      if (ending_.load()) return;
      inside_.fetch_add(1);
      if (open_.load()) body_(context_);
      inside_.fetch_sub(1);
    }
  }

  const int first_cpu_;
  const cpu_set_t before_;  // what the owner might use
  // Written by the owner while the job is closed and nobody is inside.
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  std::atomic<int> owner_cpu_{-1};
  alignas(64) std::atomic<uint32_t> bell_{0};  // jobs so far
  alignas(64) std::atomic<bool> open_{false};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> threads_;
};

thread_local std::unique_ptr<Team> team;

}  // namespace

void set_team_size(int n, int first_cpu) {
  team.reset();
  if (n > 1 || first_cpu >= 0) team = std::make_unique<Team>(n, first_cpu);
}

int team_size() { return team != nullptr ? team->size() : 1; }

void internal::run_team(void (*body)(void*), void* context) { team->run(body, context); }

}  // namespace tandem::cpu
