// Parallel loops on a team of threads that belongs to the calling thread.
//
// Each CPU device's lane has a team of its own, so devices do not share threads and their sizes add
// up to what the host planned. Between loops a thread looks for the next one for some microseconds
// and then sleeps; it sleeps at once where the process has more such threads than processors.
//
// A loop is dealt out in equal shares, the same share to the same thread whenever the same loop
// comes again: weights stay in the caches of the processor that reads them, which may be far from
// the others'. Who is done takes from the end of others' shares, and from all of a share whose
// thread has not come.
//
// (OpenMP's teams would do on a quiet machine. On a busy one its barrier waits for threads that
// have not even started on the loop and spins meanwhile; here whoever comes first does the work,
// and only a thread in the middle of a range is waited for.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tandem::cpu {

// Sets the size of the calling thread's team, the thread itself included. n >= 1; at first 1.
// first_cpu >= 0: each thread stays on a processor of its own, this one on the first_cpu-th of
// those that it may use, the others on the next ones (from the start again after the last).
void set_team_size(int n, int first_cpu = -1);
int team_size();

namespace internal {
// Of closures, as far as they are copied to where helpers look for them: what they refer to instead
// costs each helper a line of another processor.
inline constexpr size_t kClosureBytes = 144;
using Invoke = void (*)(const void* closure, int64_t begin, int64_t end);

// Returns when all calls have returned. bytes: of the closure, to be copied; 0: it stays where it
// is.
void run_team(int64_t n, int64_t grain, Invoke invoke, const void* closure, size_t bytes);
}  // namespace internal

// Calls f(begin, end) for ranges of at most `grain` indices that cover [0, n), begin a multiple of
// grain, on the calling thread's team; f(0, n) at once where the team is this thread or one range
// covers all. Which thread takes a range differs from time to time, so results must not depend on
// it. f must not throw, nor start another parallel loop.
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
