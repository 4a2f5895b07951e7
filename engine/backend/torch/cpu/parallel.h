// Parallel loops on a team of threads that belongs to the calling thread.
//
// Each CPU device's lane has a team of its own, so devices do not share threads and their sizes add
// up to what the host planned. Between loops a thread looks for the next one for some microseconds
// and then sleeps; it sleeps at once where the process has more such threads than processors.
//
// (OpenMP's teams would do on a quiet machine. On a busy one its barrier waits for threads that
// have not even started on the loop and spins meanwhile; here whoever comes first does the work,
// and only a thread in the middle of a range is waited for.)
#pragma once

#include <atomic>
#include <cstdint>

namespace tandem::cpu {

// Sets the size of the calling thread's team, the thread itself included. n >= 1; at first 1.
// first_cpu >= 0: each thread stays on a processor of its own, this one on the first_cpu-th of
// those that it may use, the others on the next ones (from the start again after the last).
void set_team_size(int n, int first_cpu = -1);
int team_size();

namespace internal {
// Calls body(context) on this thread, and on those of its team that are free before this one is
// back from it. Returns when all calls have returned.
void run_team(void (*body)(void*), void* context);
}  // namespace internal

// Calls f(begin, end) for ranges of at most `grain` indices that cover [0, n), begin a multiple of
// grain, on the calling thread's team; f(0, n) at once where the team is this thread or one range
// covers all. Ranges are handed out as threads come free, so f must not depend on who runs what. f
// must not throw, nor start another parallel loop.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (n <= grain || team_size() == 1) {
    f(int64_t{0}, n);
    return;
  }
  struct Loop {
    const F* f;
    int64_t n, grain;
    std::atomic<int64_t> next{0};
  } loop{&f, n, grain};
  internal::run_team(
      [](void* p) {
        auto* l = static_cast<Loop*>(p);
        for (;;) {
          const int64_t begin = l->next.fetch_add(l->grain, std::memory_order_relaxed);
          if (begin >= l->n) return;
          (*l->f)(begin, begin + l->grain < l->n ? begin + l->grain : l->n);
        }
      },
      &loop);
}

}  // namespace tandem::cpu
