// Makes the FAIL_AT-th pthread_create() of a process fail; preloaded by failed_thread_test.py.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef int Create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  static atomic_int calls;
  if (atomic_fetch_add(&calls, 1) + 1 == atoi(getenv("FAIL_AT"))) {
    (void)!write(STDERR_FILENO, "thread failed\n", 14);
    return EAGAIN;
  }
  Create* const create = (Create*)dlsym(RTLD_NEXT, "pthread_create");
  return create(thread, attributes, run, argument);
}
