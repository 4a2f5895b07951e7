// Handles Ctrl-C by a callback on a thread of its own.
#pragma once

#include <functional>
#include <thread>

namespace tandem::cli {

// SIGINT calls `pressed` during this object's lifetime. REQUIRES: created before other threads,
// which inherit the signal mask.
class Interrupts {
 public:
  explicit Interrupts(std::function<void()> pressed);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  std::thread thread_;
};

}  // namespace tandem::cli
