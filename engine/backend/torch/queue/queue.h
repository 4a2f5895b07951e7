// Command queues of devices: asynchronous copies, launches, events and waits.
//
// A device queue has one command queue, which executes its commands in order. Queues synchronize
// with each other by events only. On CUDA a queue is a stream (cuda/stream_queue.cpp). CPU devices
// have none: their kernels run at once, on the host's memory. Tests run CPU devices on queues that
// execute every command as late as possible (tests/engine/backend/torch/queue/lazy_queue.h).
//
// Errors are thrown; those of asynchronous commands by later calls.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace tandem {

// A position in a queue: after all commands queued when it was last recorded; at first, the start.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  virtual void synchronize() = 0;  // returns when the queue has reached it

 protected:
  Event() = default;
};

// Captured work: its launches, with their arguments.
class Graph {
 public:
  virtual ~Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

 protected:
  Graph() = default;
};

class Queue {
 public:
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Device memory, which the host must not access. It may be released while commands queued earlier
  // still use it.
  virtual std::shared_ptr<std::byte> device_memory(size_t bytes) = 0;

  // Host memory for copies (pinned on CUDA). From a copy until synchronize() the host must not
  // write the source, read the destination or release either.
  virtual std::shared_ptr<std::byte> host_memory(size_t bytes) = 0;

  // REQUIRES: `to` or `from` is device memory
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void zero(void* to, size_t bytes) = 0;  // device memory

  // Queues the kernels that `work` launches. On CUDA `work` runs now and its kernels run later:
  // their arguments must stay valid and unchanged until then.
  virtual void launch(std::function<void()> work) = 0;

  // Records the kernels that `work` launches, for replay(), and queues nothing. Their arguments
  // must stay at their addresses while there are replays. Throws if the device refuses. REQUIRES:
  // the same work was launched before, so that it initializes nothing
  virtual std::unique_ptr<Graph> capture(std::function<void()> work) = 0;
  // Queues the captured work. REQUIRES: the graph is of this queue, and lives until it has run
  virtual void replay(Graph& graph) = 0;

  // Whether kernels of this queue can read memory of the other queue's device.
  virtual bool reads(const Queue& other) const = 0;

  virtual std::unique_ptr<Event> event() = 0;
  virtual void record(Event& event) = 0;
  // Later commands of this queue run after the current position of `event`, of another queue.
  virtual void wait(const Event& event) = 0;

  virtual void synchronize() = 0;  // returns when all commands have run

 protected:
  Queue() = default;
};

// A command queue, and the end of its last batch, for queues that read its results.
struct DeviceQueue {
  explicit DeviceQueue(std::unique_ptr<Queue> own) : queue(std::move(own)), done(queue->event()) {}

  // Ends a batch.
  void finish() const {
    queue->record(*done);
    queue->synchronize();
  }

  const std::unique_ptr<Queue> queue;
  const std::unique_ptr<Event> done;
};

// With a null device queue, commands run at once, on the host's memory.

template <class Work>
void launch(const DeviceQueue* device_queue, Work&& work) {
  if (device_queue == nullptr) {
    work();
  } else {
    device_queue->queue->launch(std::forward<Work>(work));
  }
}

// As Queue::reads().
inline bool reads(const DeviceQueue* device_queue, const DeviceQueue* other) {
  if (device_queue == nullptr || other == nullptr) return device_queue == other;
  return device_queue == other || device_queue->queue->reads(*other->queue);
}

// Later commands of `device_queue` run after the batches of `other`. If it cannot read the other
// device's memory, so that rows are copied through the host, the host waits.
inline void follow(const DeviceQueue* device_queue, const DeviceQueue* other) {
  if (other == nullptr || other == device_queue) return;
  if (reads(device_queue, other)) {
    device_queue->queue->wait(*other->done);
  } else {
    other->done->synchronize();
  }
}

inline Queue* queue_of(const DeviceQueue* device_queue) {
  return device_queue == nullptr ? nullptr : device_queue->queue.get();
}

}  // namespace tandem
