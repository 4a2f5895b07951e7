#include "server/observe/kv_events.h"

#include <zmq.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/base/thread.h"

namespace tandem {
namespace {

using nlohmann::json;

// The tier of a page. vLLM has this name for the memory of the device that computes.
constexpr char kMedium[] = "GPU";
// Messages that wait for a slow subscriber; it loses later ones.
constexpr int kMaxMessages = 10'000;
// Pages of a prompt arrive one after another, and are published together.
constexpr auto kTogether = std::chrono::milliseconds(5);

json stored(const std::vector<KvEvents::Event>& events, size_t begin, size_t end) {
  json ids = json::array(), tokens = json::array();
  for (size_t i = begin; i < end; ++i) {
    ids.push_back(events[i].id);
    for (const Token token : events[i].tokens) tokens.push_back(token);
  }
  const KvEvents::Event& first = events[begin];
  return json::array({"BlockStored", std::move(ids),
                      first.before == 0 ? json() : json(first.before), std::move(tokens),
                      first.tokens.size(), json() /* lora_id */, kMedium});
}

// Binds addresses of this machine and connects to others, as vLLM does.
bool binds(const std::string& endpoint) {
  return absl::StrContains(endpoint, "*") || absl::StartsWith(endpoint, "ipc://") ||
         absl::StrContains(endpoint, "://127.") || absl::StrContains(endpoint, "://[::") ||
         absl::StrContains(endpoint, "://0.0.0.0") || absl::StrContains(endpoint, "://localhost");
}

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

std::string encode_kv_events(double seconds, const std::vector<KvEvents::Event>& events) {
  using Kind = KvEvents::Event::Kind;
  json out = json::array();
  for (size_t begin = 0, end = 1; begin < events.size(); begin = end, ++end) {
    const KvEvents::Event& event = events[begin];
    switch (event.kind) {
      case Kind::kStored:
        while (end < events.size() && events[end].kind == Kind::kStored &&
               events[end].before == events[end - 1].id) {
          ++end;
        }
        out.push_back(stored(events, begin, end));
        break;
      case Kind::kRemoved: {
        json ids = json::array({event.id});
        for (; end < events.size() && events[end].kind == Kind::kRemoved; ++end) {
          ids.push_back(events[end].id);
        }
        out.push_back(json::array({"BlockRemoved", std::move(ids), kMedium}));
        break;
      }
      case Kind::kCleared:
        out.push_back(json::array({"AllBlocksCleared"}));
        break;
    }
  }
  const std::vector<uint8_t> bytes = json::to_msgpack(json::array({seconds, std::move(out)}));
  return {bytes.begin(), bytes.end()};
}

class KvEvents::Socket {
 public:
  static absl::StatusOr<std::unique_ptr<Socket>> open(const std::string& endpoint) {
    std::unique_ptr<Socket> out(new Socket);
    void* const pub = out->socket_;
    const int none = 0;
    if (pub == nullptr || zmq_setsockopt(pub, ZMQ_SNDHWM, &kMaxMessages, sizeof(int)) != 0 ||
        zmq_setsockopt(pub, ZMQ_LINGER, &none, sizeof(none)) != 0 ||
        (binds(endpoint) ? zmq_bind(pub, endpoint.c_str()) : zmq_connect(pub, endpoint.c_str())) !=
            0) {
      return absl::InvalidArgumentError(
          absl::StrCat("server.kv_events.endpoint: ", endpoint, ": ", zmq_strerror(zmq_errno())));
    }
    return out;
  }
  ~Socket() {
    if (socket_ != nullptr) zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // PUB sockets do not block: without subscribers, and for slow ones, messages are dropped.
  void send(const std::string& topic, uint64_t number, const std::string& payload) {
    std::array<uint8_t, 8> big_endian;
    for (size_t i = 0; i < 8; ++i) big_endian[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
    zmq_send(socket_, topic.data(), topic.size(), ZMQ_SNDMORE);
    zmq_send(socket_, big_endian.data(), big_endian.size(), ZMQ_SNDMORE);
    zmq_send(socket_, payload.data(), payload.size(), 0);
  }

 private:
  Socket() : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_PUB)) {}

  void* const context_;
  void* const socket_;
};

absl::StatusOr<std::unique_ptr<KvEvents>> KvEvents::start(Options options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Socket> socket, Socket::open(options.endpoint));
  return std::unique_ptr<KvEvents>(new KvEvents(std::move(options), std::move(socket)));
}

KvEvents::KvEvents(Options options, std::unique_ptr<Socket> socket)
    : options_(std::move(options)), socket_(std::move(socket)) {
  // A server that starts holds none of the blocks of the one before it.
  for (const auto& [model, deployments] : options_.deployments) {
    waiting_.push_back({.kind = Event::Kind::kCleared, .model = model});
  }
  thread_ = start_thread("KV events", [this] { run(); });
}

KvEvents::~KvEvents() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void KvEvents::on_stored(const std::string& model, const StoredPage& page) {
  add({Event::Kind::kStored,
       model,
       page.id,
       page.before,
       {page.tokens.begin(), page.tokens.end()}});
}

void KvEvents::on_removed(const std::string& model, uint64_t id) {
  add({Event::Kind::kRemoved, model, id, 0, {}});
}

void KvEvents::add(Event event) {
  if (!options_.deployments.contains(event.model)) return;
  {
    const MutexLock lock(&mutex_);
    if (waiting_.size() >= options_.max_events) {
      // Subscribers forget all blocks, and learn of later ones.
      dropped_.fetch_add(static_cast<int64_t>(waiting_.size()) + 1, std::memory_order_relaxed);
      waiting_.clear();
      for (const auto& [model, deployments] : options_.deployments) {
        waiting_.push_back({.kind = Event::Kind::kCleared, .model = model});
      }
      return;
    }
    waiting_.push_back(std::move(event));
  }
  changed_.notify_one();
}

void KvEvents::run() {
  for (;;) {
    std::deque<Event> events;
    bool stopping = false;
    {
      MutexLock lock(&mutex_);
      changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !waiting_.empty();
      });
      stopping = stopping_;
      if (!stopping) {
        changed_.wait_for(lock, kTogether,
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
      }
      events.swap(waiting_);
    }
    std::map<std::string, std::vector<Event>> by_model;
    for (Event& event : events) by_model[event.model].push_back(std::move(event));
    for (const auto& [model, of_model] : by_model) publish(model, of_model);
    if (stopping) return;
  }
}

void KvEvents::publish(const std::string& model, const std::vector<Event>& events) {
  const std::string payload = encode_kv_events(unix_seconds(), events);
  for (const std::string& deployment : options_.deployments.at(model)) {
    const std::string topic = absl::StrCat(options_.topic, "@", deployment);
    socket_->send(topic, sequence_numbers_[topic]++, payload);
  }
  published_.fetch_add(static_cast<int64_t>(events.size()), std::memory_order_relaxed);
}

}  // namespace tandem
