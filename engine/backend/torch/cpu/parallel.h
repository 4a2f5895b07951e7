// Parallel loops on a team of threads owned by the calling thread.
//
// The device queue of each CPU device has its own team, so devices do not share threads and their
// team sizes add up to the host's plan. Between loops a helper thread spins for some microseconds,
// then sleeps. It sleeps at once if the process has more such threads than processors.
//
// A loop is divided into equal shares, and a repeated loop assigns the same share to the same
// thread. Weights thus stay in the cache (and NUMA node) of the processor that reads them. A thread
// that has finished takes ranges from the end of other shares, and all ranges of a thread that has
// not started.
//
// An OpenMP team performs as well on an idle machine. On a busy one its barrier waits for threads
// that have not been scheduled, and spins meanwhile. Here a loop waits only for threads that are
// inside a range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tandem::cpu {

// Sets the size n >= 1 of the calling thread's team, including that thread. Initially 1.
// first_cpu >= 0: pins each thread to a processor: this thread to the first_cpu-th allowed one, the
// others to the next ones, wrapping around.
void set_team_size(int n, int first_cpu = -1);
int team_size();

namespace internal {
// Closures up to this size are copied into the job's cache lines. Referencing the original would
// cost each helper another cache miss.
inline constexpr size_t kClosureBytes = 144;
using Invoke = void (*)(const void* closure, int64_t begin, int64_t end);

// Returns after all calls have returned. bytes: size of the closure, to be copied; 0: do not copy.
void run_team(int64_t n, int64_t grain, Invoke invoke, const void* closure, size_t bytes);
}  // namespace internal

// Calls f(begin, end) for ranges that cover [0, n), of at most `grain` indices and with begin a
// multiple of grain, on the calling thread's team. Calls f(0, n) directly if the team has one
// thread or one range covers all. The assignment of ranges to threads varies, so results must not
// depend on it. REQUIRES: f does not throw and does not start another parallel loop.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (n <= grain || team_size() == 1) {
    f(int64_t{0}, n);
    return;
  }
  constexpr bool kCopied = std::is_trivially_copyable_v<F> && sizeof(F) <= internal::kClosureBytes;
  internal::run_team(
      n, grain,
      [](const void* closure, int64_t begin, int64_t end) {
        (*static_cast<const F*>(closure))(begin, end);
      },
      &f, kCopied ? sizeof(F) : 0);
}

}  // namespace tandem::cpu
