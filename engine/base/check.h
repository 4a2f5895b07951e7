// Invariants of our own code. A broken one is a bug: it stops the process with the place and the
// condition. Bad input never gets here; it is a Status.
#pragma once

#include <cstdio>
#include <cstdlib>

#define TANDEM_CHECK(condition)                                                              \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
