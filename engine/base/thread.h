// Starting threads. The system may refuse a thread (EAGAIN). std::thread then throws an exception
// that does not name the thread.
#pragma once

#include <functional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem {

// A thread that runs `f`. `what` completes "cannot start the thread for ...". Throws
// std::system_error with that message.
template <class F>
std::thread start_thread(const char* what, F&& f) {
  try {
    return std::thread(std::forward<F>(f));
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), absl::StrCat("cannot start the thread for ", what));
  }
}

// Appends `count` threads that run `f` to `threads`. If one cannot start, calls `stop`, which makes
// `f` return, joins the others, and throws as start_thread() does.
template <class F>
void start_threads(const char* what, int count, const F& f, const std::function<void()>& stop,
                   std::vector<std::thread>* threads) {
  try {
    for (int i = 0; i < count; ++i) threads->push_back(start_thread(what, f));
  } catch (...) {
    stop();
    for (std::thread& thread : *threads) thread.join();
    throw;
  }
}

}  // namespace tandem
