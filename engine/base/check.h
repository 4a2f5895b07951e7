// Checks of internal invariants. A violation is a bug: it aborts with location and condition.
// Invalid input is reported as a Status instead.
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
