// Ctrl-C as a call on a thread of its own, instead of the program's end.
#pragma once

#include <functional>
#include <thread>

namespace tandem::cli {

// From its making to its end SIGINT calls `pressed`. Made before other threads, which then leave
// the signal to it.
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
