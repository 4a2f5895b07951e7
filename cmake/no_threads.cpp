// Linked into programs of tests that start no thread, by which they need not run under TSan.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  std::fputs(
      "This program of tests starts a thread: say THREADS in tests/CMakeLists.txt, so that "
      "it runs under TSan.\n",
      stderr);
  std::abort();
}
