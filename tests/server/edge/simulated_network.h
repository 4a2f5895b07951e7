// A network on virtual time for HttpServer: connections are pairs of buffers, and nothing waits.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/edge/http_io.h"

namespace tandem::test {

class SimulatedNetwork final : public HttpIo {
 public:
  explicit SimulatedNetwork(VirtualClock* clock) : clock_(*clock) {}

  // --- The clients' side

  // A new connection from a host, for HttpServer::add_connection().
  int connect(const std::string& host) {
    const int socket = next_++;
    connections_[socket].peer = absl::StrCat("ipv4:", host, ":", socket);
    return socket;
  }
  void send_to_server(int socket, absl::string_view bytes) {
    connections_.at(socket).input.append(bytes.data(), bytes.size());
  }
  // What has arrived, at most `most` bytes.
  std::string read_from_server(int socket, size_t most = std::string::npos) {
    Connection& c = connections_.at(socket);
    std::string out = c.output.substr(0, most);
    c.output.erase(0, out.size());
    return out;
  }
  void close_client(int socket) { connections_.at(socket).client_closed = true; }
  void reset_client(int socket) { connections_.at(socket).reset = true; }
  // From now on the server cannot change the events that it waits for.
  void fail_watches(int socket) { connections_.at(socket).unwatchable = true; }
  // The bytes of a response that the network holds; the rest waits in the server.
  void set_capacity(int socket, size_t bytes) { connections_.at(socket).capacity = bytes; }

  bool closed(int socket) const { return connections_.at(socket).server_closed; }
  bool output_ended(int socket) const { return connections_.at(socket).output_ended; }
  size_t unread_input(int socket) const { return connections_.at(socket).input.size(); }
  size_t unread_output(int socket) const { return connections_.at(socket).output.size(); }
  int open() const {
    return static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                          [](const auto& c) { return !c.second.server_closed; }));
  }

  // --- HttpIo

  TimePoint now() const override { return clock_.now(); }
  std::string peer(int socket) const override { return connections_.at(socket).peer; }
  bool add(int socket, uint32_t events, void* tag) override { return watch(socket, events, tag); }
  bool watch(int socket, uint32_t events, void* tag) override {
    connections_.at(socket).watched = events;
    connections_.at(socket).tag = tag;
    return !connections_.at(socket).unwatchable;
  }
  ssize_t receive(int socket, char* to, size_t size) override {
    Connection& c = connections_.at(socket);
    if (c.reset) return kBroken;
    if (c.input.empty()) return c.client_closed ? 0 : kLater;
    const size_t n = std::min(size, c.input.size());
    std::copy_n(c.input.begin(), n, to);
    c.input.erase(0, n);
    return static_cast<ssize_t>(n);
  }
  ssize_t send(int socket, absl::string_view bytes) override {
    Connection& c = connections_.at(socket);
    if (c.reset) return kBroken;
    const size_t n = std::min(bytes.size(), c.capacity - std::min(c.capacity, c.output.size()));
    if (n == 0) return kLater;
    c.output.append(bytes.data(), n);
    return static_cast<ssize_t>(n);
  }
  void end_output(int socket) override { connections_.at(socket).output_ended = true; }
  void close(int socket) override { connections_.at(socket).server_closed = true; }
  void wait(Duration /*limit*/, std::vector<Event>* events) override {
    for (auto& [socket, c] : connections_) {
      if (c.server_closed || c.tag == nullptr) continue;
      uint32_t ready = c.reset ? kFailed : 0;
      if (!c.input.empty() || c.client_closed) ready |= kInput & c.watched;
      if (c.client_closed) ready |= kPeerClosed & c.watched;
      if (c.output.size() < c.capacity) ready |= kOutput & c.watched;
      if (ready != 0) events->push_back({c.tag, ready});
    }
  }
  void wake() override {}

 private:
  struct Connection {
    std::string peer;
    std::string input, output;  // of the server
    size_t capacity = 64 << 10;
    bool client_closed = false, reset = false, server_closed = false, output_ended = false;
    bool unwatchable = false;
    uint32_t watched = 0;
    void* tag = nullptr;
  };

  VirtualClock& clock_;
  std::map<int, Connection> connections_;
  int next_ = 1;
};

}  // namespace tandem::test
