// Queues for tests that run commands as late as possible, under CPU devices, whose kernels then run
// as asynchronously as a GPU's.
//
//   LazyDevices devices({.seed = 3});
//   auto shared = std::make_shared<TorchShared>(devices.make_queue());
//
// A command runs only when the host waits for it: then this queue advances, and the other queues as
// far as its events require; with `eager`, others also advance at random. Device memory is
// accessible only while a queue runs a command; any other access ends the process (SIGSEGV, with a
// message). Host memory of pending copies is checked: the source must not change, the destination
// must not be written.
//
// What a graph launches it launches again as it was captured: work that looks up anything that has
// changed since would hide what a device does, so it must hold all that it names by value.
//
// After the first such fault no command runs, and waits throw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/backend/torch/queue/queue.h"
#include "engine/base/config.h"

namespace tandem {

enum class QueueCall : uint8_t {
  kCopy,
  kZero,
  kLaunch,
  kCapture,
  kReplay,
  kRecord,
  kWait,
  kSynchronize
};
inline constexpr int kQueueCalls = 8;
const char* name_of(QueueCall call);

class LazyQueue;

// Thread-safe. Outlives its queues, and events and memory of theirs.
class LazyDevices {
 public:
  struct Options {
    uint64_t seed = 1;
    bool eager = false;
    bool peers = true;                 // queues read each other's devices
    size_t bytes = size_t{512} << 20;  // of all devices' memory together, which is never used again
  };
  explicit LazyDevices(const Options& options);
  ~LazyDevices();
  LazyDevices(const LazyDevices&) = delete;
  LazyDevices& operator=(const LazyDevices&) = delete;

  std::unique_ptr<Queue> queue();
  std::function<std::unique_ptr<Queue>(const DeviceConfig&)> make_queue() {
    return [this](const DeviceConfig&) { return queue(); };
  }

  // How often queues were called, by QueueCall.
  std::array<int, kQueueCalls> calls() const;
  // What these calls brought and waited for.
  struct Traffic {
    int to_device = 0, to_host = 0;  // copies
    int64_t bytes_to_device = 0, bytes_to_host = 0;
    int waits = 0;        // calls that waited for a command
    int idle_after = 0;   // of these, those after which the queue had no command left
    int allocations = 0;  // of memory of a device, and of the host's for copies
  };
  Traffic traffic() const;
  // Plants a fault: the n-th call of this kind from now on (0: the next one) does nothing; a copy
  // to a device leaves zeros there, so that indices stay within their memory.
  void skip(QueueCall call, int n);
  // Whether something was left undone because of that: not where a queue that had nothing to do was
  // to be waited for.
  bool skipped_something() const;
  // All of this kind of one queue, by the order in which queues were made.
  void skip_all(QueueCall call, int queue);
  // The n-th call of this kind from now on throws by calling `error`; for ever: so does every call
  // of that queue behind it.
  void fail(QueueCall call, int n, std::function<void()> error, bool for_ever = false);

  // The host's first fault; "": none.
  std::string fault() const;

  // What lies in device memory, which the host must not read by itself.
  std::vector<std::byte> look(const std::byte* at, size_t bytes);

 private:
  friend class LazyQueue;
  friend class LazyEvent;

  struct Operation {
    QueueCall call;
    std::function<void()> work;  // throws a string for what the host did wrong
    int of = -1;                 // kWait: the queue that must have come to `place`
    int64_t place = 0;
  };
  struct State {
    std::deque<Operation> operations;
    int64_t put = 0, done = 0;  // operations
    std::vector<QueueCall> skipped;
    std::function<void()> lost;
    bool gone = false;
  };
  struct Planned {
    QueueCall call;
    int n;
    std::function<void()> error;  // null: it is skipped
    bool for_ever;
  };

  // Whether the call is to be made at all. Throws planned errors.
  bool enter(int queue, QueueCall call);
  void put(int queue, Operation operation);
  void come_to(int queue, int64_t place);
  void wait_for(int queue, int64_t place);  // of the host
  bool can_go_on(int queue) const;
  void go_on(int queue);
  void others_go_on(int queue);
  std::byte* take(size_t bytes);
  bool is_device(const void* at) const;
  std::function<void()> watched_copy(void* to, const void* from, size_t bytes);
  void open();
  void close();

  const Options options_;
  mutable std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  std::vector<State> queues_;
  std::vector<Planned> planned_;
  std::array<int, kQueueCalls> calls_{};
  Traffic traffic_;
  bool skipped_ = false;
  std::string fault_;
  std::byte* memory_ = nullptr;
  size_t used_ = 0;
  int opened_ = 0;
};

}  // namespace tandem
