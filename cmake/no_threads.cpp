// Linked into test programs: starting a thread aborts, except in tests of the files that the TSan
// build has (THREADS in tests/CMakeLists.txt). So each test with threads runs under TSan.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <regex.h>  // <regex> would compile for seconds in each program

#include <cstdio>
#include <cstdlib>

extern const char* const tandem_files_with_threads;  // a regular expression; empty: none

namespace {

// The file of the test that runs, or whose suite is set up; empty outside tests.
const char* file_of_test() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const testing::TestInfo* test = all.current_test_info();
  const testing::TestSuite* const suite = all.current_test_suite();
  if (test == nullptr && suite != nullptr) test = suite->GetTestInfo(0);
  return test != nullptr ? test->file() : "";
}

bool may_start_threads(const char* file) {
  if (*tandem_files_with_threads == '\0') return false;
  regex_t expression;
  if (regcomp(&expression, tandem_files_with_threads, REG_EXTENDED | REG_NOSUB) != 0) std::abort();
  const bool found = regexec(&expression, file, 0, nullptr, 0) == 0;
  regfree(&expression);
  return found;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  const char* const file = file_of_test();
  if (may_start_threads(file)) return create(thread, attributes, start, argument);
  std::fprintf(stderr,
               "A test of \"%s\" starts a thread: add the file to THREADS in tests/CMakeLists.txt, "
               "so that it runs under TSan.\n",
               file);
  std::abort();
}
