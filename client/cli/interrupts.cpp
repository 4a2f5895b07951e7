#include "client/cli/interrupts.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace tandem::cli {

Interrupts::Interrupts(std::function<void()> pressed) {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGINT);
  sigaddset(&watched, SIGUSR1);  // sent by the destructor to end the thread
  pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  thread_ = std::thread([watched, pressed = std::move(pressed)] {
    for (int number = 0;;) {
      if (sigwait(&watched, &number) != 0 || number == SIGUSR1) return;
      pressed();
    }
  });
}

Interrupts::~Interrupts() {
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

}  // namespace tandem::cli
