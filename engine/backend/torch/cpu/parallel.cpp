#include "engine/backend/torch/cpu/parallel.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "engine/base/thread.h"

namespace tandem::cpu {
namespace {

// Loops of one batch are microseconds apart.
constexpr auto kSpinTime = std::chrono::microseconds(30);

// Total threads of all teams in the process.
std::atomic<int> team_threads{0};

int processors() {
  static const int kCount = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return kCount;
}

bool oversubscribed() { return team_threads.load(std::memory_order_relaxed) > processors(); }

// Spins for some microseconds until done(). Does not spin if the processors are oversubscribed:
// that would cost another thread, and then this one, a time slice.
template <class F>
bool spin_until(const F& done) {
  if (done()) return true;
  if (oversubscribed()) return false;
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

// Pins to the n-th processor of a set, wrapping around. Best effort.
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

// Moves the calling thread off `cpu` if it runs there. It may be scheduled there again later.
void move_off(int cpu, const cpu_set_t& allowed) {
  if (cpu < 0 || sched_getcpu() != cpu || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  pthread_setaffinity_np(pthread_self(), sizeof others, &others);
  pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
}

// The current job as helpers see it, in cache lines that they poll anyway. Job numbers are odd; the
// next even number means that the job is closed.
struct alignas(64) Order {
  std::atomic<uint32_t> number{0};
  // Written by the owner while no helper is inside a job or can enter one.
  internal::Invoke invoke = nullptr;
  const void* closure = nullptr;
  int64_t first = 0;  // indices [first, end) in ranges of `grain`
  int64_t end = 0;
  int64_t grain = 1;

  // First range of a member's share. The remainder goes to the first members, because the owner
  // starts before the helpers do.
  int64_t share(int member, int size) const {
    const int64_t ranges = (end - first + grain - 1) / grain;
    return (ranges * member + size - 1) / size;
  }
  void run(int64_t range) const {
    const int64_t begin = first + range * grain;
    invoke(closure, begin, std::min(end, begin + grain));
  }
  alignas(16) std::byte copy[internal::kClosureBytes];
};
static_assert(sizeof(Order) == 192);

// One member's share of a job.
struct alignas(64) Share {
  // Ranges taken: job << 32 | from the front << 16 | from the back. Stale (none taken) if `job` is
  // older.
  std::atomic<uint64_t> taken{0};
  // Helpers only: the job that the helper is inside, or that job + 1 after it has left.
  std::atomic<uint32_t> at{0};
};
constexpr int64_t kMaxRanges = 0xffff;  // total of all shares

// Takes the next of `ranges` ranges of a share, or returns -1. The owner of the share takes from
// the front. Others take from the back and leave the last range to an owner that has started.
int64_t take(Share& share, uint32_t job, int64_t ranges, bool own) {
  uint64_t taken = share.taken.load(std::memory_order_relaxed);
  for (;;) {
    const bool fresh = taken >> 32 != job;
    const auto front = fresh ? 0 : static_cast<int64_t>(taken >> 16 & 0xffff);
    const auto back = fresh ? 0 : static_cast<int64_t>(taken & 0xffff);
    const int64_t left = ranges - front - back;
    if (left <= 0 || (!own && front > 0 && left == 1)) return -1;
    const uint64_t next = uint64_t{job} << 32 | static_cast<uint64_t>(front + (own ? 1 : 0)) << 16 |
                          static_cast<uint64_t>(back + (own ? 0 : 1));
    if (share.taken.compare_exchange_weak(taken, next, std::memory_order_relaxed)) {
      return own ? front : ranges - 1 - back;
    }
  }
}

// The helpers of one thread.
//
// Entry protocol: a helper announces itself, then checks whether the job is still open. For a
// helper that has not announced itself at the end, the owner closes the job, then checks that
// helper again. All accesses are sequentially consistent, so one of the two sees the other. A job
// ends with no helper inside, and late helpers leave without touching it.
//
// A cache line written by another processor takes longer to arrive than the rest of a short loop. A
// helper therefore needs only the lines of the order and of its own share. The owner reads the
// latter once, at the end.
class Team {
 public:
  Team(int size, int first_cpu)
      : first_cpu_(first_cpu),
        before_(affinity()),
        shares_(std::make_unique<Share[]>(static_cast<size_t>(size))) {
    team_threads += size;
    try {
      for (int i = 1; i < size; ++i) {
        threads_.push_back(start_thread("a team of a device", [this, i, size] { help(i, size); }));
        if (first_cpu >= 0) pin(threads_.back().native_handle(), before_, first_cpu + i);
      }
    } catch (...) {
      end_helpers();
      team_threads -= size;
      throw;
    }
    if (first_cpu >= 0) pin(pthread_self(), before_, first_cpu);
  }

  ~Team() {
    end_helpers();
    team_threads -= size();
    if (first_cpu_ >= 0) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(int64_t n, int64_t grain, internal::Invoke invoke, const void* closure, size_t bytes) {
    order_.invoke = invoke;
    order_.closure = bytes > 0 ? order_.copy : closure;
    order_.grain = grain;
    if (bytes > 0) std::memcpy(order_.copy, closure, bytes);
    for (int64_t first = 0; first < n; first += kMaxRanges * grain) {
      order_.first = first;
      order_.end = std::min(n, first + kMaxRanges * grain);
      run_order();
    }
  }

 private:
  void end_helpers() {
    ending_.store(true);
    order_.number.fetch_add(2);
    order_.number.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void run_order() {
    const uint32_t job = (order_.number.load(std::memory_order_relaxed) + 1) | 1;
    order_.number.store(job, std::memory_order_release);
    // Do not wait for the store to become visible: that takes as long as a short range. A helper
    // that falls asleep meanwhile is woken after the first range.
    if (asleep_.load(std::memory_order_relaxed) > 0) wake();
    const int64_t range = take(shares_[0], job, order_.share(1, size()), /*own=*/true);
    if (range >= 0) order_.run(range);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (asleep_.load() > 0) wake();
    work(0, size(), job);
    bool closed = false;
    for (int i = 1; i < size(); ++i) {
      const std::atomic<uint32_t>& at = shares_[static_cast<size_t>(i)].at;
      const auto out = [&] { return at.load() != job; };
      if (at.load() == job + 1) continue;
      if (out() && !closed) {
        order_.number.store(job + 1);
        closed = true;
      }
      while (!spin_until(out)) std::this_thread::yield();
    }
  }

  void wake() {
    owner_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
    order_.number.notify_all();
  }

  // Takes ranges of the own share first, then of the other shares.
  void work(int member, int size, uint32_t job) {
    for (int i = 0; i < size; ++i) {
      const int of = (member + i) % size;
      Share& share = shares_[static_cast<size_t>(of)];
      const int64_t first = order_.share(of, size);
      const int64_t ranges = order_.share(of + 1, size) - first;
      for (int64_t r = 0; (r = take(share, job, ranges, i == 0)) >= 0;) order_.run(first + r);
    }
  }

  void help(int member, int size) {
    std::atomic<uint32_t>& at = shares_[static_cast<size_t>(member)].at;
    uint32_t now = 0;
    uint32_t job = 0;
    const auto job_open = [&] {
      now = order_.number.load();
      return (now % 2 != 0 && now != job) || ending_.load(std::memory_order_relaxed);
    };
    for (;;) {
      while (!spin_until(job_open)) {
        asleep_.fetch_add(1);
        if (!job_open()) order_.number.wait(now);
        asleep_.fetch_sub(1);
        // A busy kernel wakes a thread on the waker's processor, where it would wait until the
        // owner has finished alone, every time.
        if (first_cpu_ < 0 && !oversubscribed()) move_off(owner_cpu_.load(), before_);
      }
      if (ending_.load()) return;
      job = now;
      at.store(job);
      if (order_.number.load() == job) work(member, size, job);
      at.store(job + 1, std::memory_order_release);
    }
  }

  const int first_cpu_;
  const cpu_set_t before_;  // affinity of the owner before pinning
  Order order_;
  const std::unique_ptr<Share[]> shares_;  // per member; 0: the owner
  alignas(64) std::atomic<int> asleep_{0};
  std::atomic<int> owner_cpu_{-1};
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

void internal::run_team(int64_t n, int64_t grain, Invoke invoke, const void* closure,
                        size_t bytes) {
  team->run(n, grain, invoke, closure, bytes);
}

}  // namespace tandem::cpu
