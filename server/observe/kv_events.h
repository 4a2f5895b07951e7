// Publishes which blocks of prompts the prefix caches hold, for endpoint pickers that choose the
// server with the longest cached prefix. The messages are those of vLLM (vllm/distributed/
// kv_events.py): on a ZeroMQ PUB socket, with the frames topic, sequence number (8 bytes, big
// endian) and a msgpack array [time, events].
//
// A block is a page. Pages of one client, and pages that depend on adapters or on other models, are
// not published.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/cache/prefix_listener.h"

namespace tandem {

class KvEvents final : public PrefixListener {
 public:
  struct Options {
    std::string endpoint;  // "tcp://*:5557": binds; "tcp://picker:5557": connects
    std::string topic;     // topics are "TOPIC@DEPLOYMENT"
    // By model: the deployments that use it as their large model. Others are not published.
    std::map<std::string, std::vector<std::string>> deployments;
    size_t max_events = 1 << 16;  // that wait for the publishing thread
  };
  struct Event {
    enum class Kind { kStored, kRemoved, kCleared };
    Kind kind = Kind::kStored;
    std::string model;
    uint64_t id = 0, before = 0;  // StoredPage
    std::vector<Token> tokens;
  };

  // Errors name the endpoint.
  static absl::StatusOr<std::unique_ptr<KvEvents>> start(Options options);
  // Publishes the events that wait.
  ~KvEvents() override;

  void on_stored(const std::string& model, const StoredPage& page) override;
  void on_removed(const std::string& model, uint64_t id) override;

  // Thread-safe; since start.
  int64_t published() const { return published_.load(std::memory_order_relaxed); }
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  class Socket;

  KvEvents(Options options, std::unique_ptr<Socket> socket);
  void add(Event event);
  void run();
  void publish(const std::string& model, const std::vector<Event>& events);

  const Options options_;
  const std::unique_ptr<Socket> socket_;              // of the publishing thread
  std::map<std::string, uint64_t> sequence_numbers_;  // the next, by topic; the same
  std::atomic<int64_t> published_{0}, dropped_{0};    // events
  Mutex mutex_;
  CondVar changed_;
  std::deque<Event> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The msgpack payload of a message. `seconds`: Unix time. Consecutive pages of a prompt become one
// event.
std::string encode_kv_events(double seconds, const std::vector<KvEvents::Event>& events);

}  // namespace tandem
