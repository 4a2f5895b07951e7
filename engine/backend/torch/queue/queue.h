// What a device is asked to do while the host goes on: copies, launches, events and waits.
//
// A device queue has one command queue. What is put on it happens later, in that order; queues know
// nothing of each other but by events. On CUDA a queue is a stream (cuda/stream_queue.cpp). CPU
// devices have none: their kernels read the host's memory, and all happens at once. Tests put
// queues below CPU devices that do everything as late as they may
// (tests/engine/backend/torch/queue/lazy_queue.h).
//
// Errors are thrown, like all of a device's; those of what happens later by later calls.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace tandem {

// A place in a queue: behind all that was on it when the event was last recorded; at first, none.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  virtual void synchronize() = 0;  // returns when the queue has come there

 protected:
  Event() = default;
};

// Work that was captured: what it launches, with the places and numbers that it named then.
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

  // Memory of the device, which the host does not look into. What was put on this queue before may
  // still use it when it is given back.
  virtual std::shared_ptr<std::byte> device_memory(size_t bytes) = 0;

  // The host's memory for copies. From a copy on until synchronize() the host neither writes what
  // it reads, nor reads what it writes, nor gives either back.
  virtual std::shared_ptr<std::byte> host_memory(size_t bytes) = 0;

  // One of both is the device's.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void zero(void* to, size_t bytes) = 0;  // of the device

  // On CUDA `work` runs now and puts its kernels on the queue. It uses what it names when the queue
  // comes there, and so nothing that may be changed or gone by then.
  virtual void launch(std::function<void()> work) = 0;

  // Keeps what `work` launches, for replay(), and puts nothing on the queue. What it names must
  // stay where it is for as long as there are replays. REQUIRES: work like it was launched before,
  // so that it makes nothing for the first time: a device may refuse that here, by an error that is
  // thrown.
  virtual std::unique_ptr<Graph> capture(std::function<void()> work) = 0;
  // As launch() of the work that was captured. REQUIRES: of this queue; stays until that is done
  virtual void replay(Graph& graph) = 0;

  // Whether what is put here may read memory of the other's device where it lies.
  virtual bool reads(const Queue& other) const = 0;

  virtual std::unique_ptr<Event> event() = 0;
  virtual void record(Event& event) = 0;
  // What is put here from now on comes after the place in another queue that `event` has now.
  virtual void wait(const Event& event) = 0;

  virtual void synchronize() = 0;  // returns when all has happened

 protected:
  Queue() = default;
};

// A command queue, and how far its batches have come, for others that read what they wrote.
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

// Those whose device queue is null happen at once, in the host's memory.

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

// What `device_queue` does from here on comes after the batches of `other`: by the queues, or where
// what is read goes through the host's memory, the host waits.
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
