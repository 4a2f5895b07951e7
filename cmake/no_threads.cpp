// Linked into tests without THREADS, which the TSan build omits: starting a thread aborts.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  std::fputs(
      "This test program starts a thread: add THREADS in tests/CMakeLists.txt, so that it "
      "runs under TSan.\n",
      stderr);
  std::abort();
}
