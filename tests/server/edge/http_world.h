// A simulation of the HTTP API's server layer: HttpServer, ClientTurns and calls, on virtual time,
// with clients of all kinds that a seed chooses. After every step it checks invariants.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/edge/client_turns.h"
#include "server/edge/http_server.h"
#include "tests/server/edge/simulated_network.h"

namespace tandem::test {

class HttpWorld {
 public:
  explicit HttpWorld(uint64_t seed) : rng_(seed), turns_(0, &clock_) {
    HttpServer::Bounds bounds;
    bounds.connections = 200;
    bounds.head_bytes = 512;
    bounds.body_bytes = 128 << 10;
    auto network = std::make_unique<SimulatedNetwork>(&clock_);
    net_ = network.get();
    server_ = std::make_unique<HttpServer>(
        bounds,
        HttpServer::Handlers{[this](std::shared_ptr<HttpExchange> e) { begin(std::move(e)); },
                             [](int status) { return absl::StrCat("error ", status); },
                             [](const HttpMessage& head, const HttpPeer&) {
                               HttpAdmission out;
                               out.client = head.header("authorization");
                               if (out.client.empty()) out.refusal = {401, {}, "refused"};
                               return out;
                             }},
        &account_, std::move(network));
  }
  ~HttpWorld() {
    for (auto& [id, call] : calls_) call->let_go();
  }

  // Runs to the end. Empty, or the first invariant that was broken.
  std::string run() {
    const int clients = 3 + below(8);
    for (int i = 0; i < clients; ++i) add_client(i);
    const int steps = 150 + below(150);
    const int drain_at = below(3) == 0 ? below(steps) : -1;
    for (int i = 0; i < steps && broken_.empty(); ++i) {
      if (i == drain_at) drain();
      act(clients_[static_cast<size_t>(below(clients))]);
      if (below(3) == 0) run_turn();
      if (below(2) == 0) advance_call();
      if (below(4) == 0) clock_.advance(std::chrono::milliseconds(below(400)));
      settle();
      check();
    }
    finish();
    return broken_;
  }

 private:
  enum class Kind { kGood, kLeaver, kNonReader, kSlowSender, kUnauthenticated, kFlooder, kGarbage };

  struct Request {
    int id;
    size_t size;    // of the answer
    bool admitted;  // has a token
    bool keeps;     // a refusal keeps the connection
  };
  struct Client {
    Kind kind;
    std::string host, name;
    int socket = 0;                // 0: not connected
    std::deque<Request> expected;  // sent as a whole, not answered
    std::string outgoing, received;
    size_t handed_over = 0;  // of the request in `outgoing`
    bool closing = false;    // the server has announced the end of the connection
    bool large = false;      // a flood of large bodies
    int connections = 0;     // of a flood
  };

  // A call: parses in its turn, then responds, whole or in pieces.
  struct Call final : HttpExchange::Listener, HttpServer::Work {
    Call(HttpWorld* w, std::shared_ptr<HttpExchange> e) : world(*w), exchange(std::move(e)) {
      const std::vector<std::string> parts = absl::StrSplit(exchange->message.path, '/');
      id = std::stoi(parts.at(1));
      size = static_cast<size_t>(std::stoi(parts.at(2)));
      exchange->listen(this);
    }
    void parsed(const absl::Status& status) {
      if (exchange == nullptr) return;
      if (status.ok() && world.drained_) world.fail("a task ran after the drain");
      if (status.ok() && exchange->message.body.find_first_not_of('b') != std::string::npos) {
        world.fail("a body was changed");
      }
      exchange->drop_body();
      state = status.ok() ? State::kRunning : State::kFailed;
      if (gone) let_go();
    }
    void work() override {
      posted = false;
      if (exchange == nullptr || writing || ending) return;
      const HttpHeaders headers = {{"X-Id", absl::StrCat(id)}};
      if (state == State::kFailed) return end_with([&] { exchange->respond(503, headers, ""); });
      if (id % 2 == 0) {
        return end_with([&] { exchange->respond(200, headers, answer(id, size)); });
      }
      if (!exchange->begun()) exchange->begin(200, headers);
      const std::string all = answer(id, size);
      const size_t piece = std::min<size_t>(all.size() - written_bytes, 1 + size / 3);
      const std::string bytes = all.substr(written_bytes, piece);
      written_bytes += piece;
      if (written_bytes == all.size()) return end_with([&] { exchange->end(bytes); });
      writing = true;
      exchange->write(bytes);
    }
    template <class End>
    void end_with(End end) {
      ending = true;
      end();
    }
    void written(bool ok) override {
      if (!writing && !ending) world.fail("a write was reported that is not due");
      writing = false;
      if (ending && ok) let_go();
    }
    void closed() override {
      gone = true;
      world.turns_.cancel(turn, absl::CancelledError("gone"));
      if (state != State::kWaiting) let_go();
    }
    void let_go() {
      if (exchange == nullptr) return;
      exchange->listen(nullptr);
      exchange.reset();
    }

    enum class State { kWaiting, kRunning, kFailed };
    HttpWorld& world;
    std::shared_ptr<HttpExchange> exchange;
    int id = 0;
    size_t size = 0;
    uint64_t turn = 0;
    int turns_before = 0;  // turns that others had when it began to wait
    State state = State::kWaiting;
    bool gone = false, posted = false, writing = false, ending = false;
    size_t written_bytes = 0;
  };
  struct Pulse final : HttpServer::Work {
    void work() override { beaten = true; }
    bool beaten = true;
  };

  static std::string answer(int id, size_t size) {
    std::string out;
    while (out.size() < size) absl::StrAppend(&out, id, ";");
    out.resize(size);
    return out;
  }

  int below(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  void fail(const std::string& what) {
    if (broken_.empty()) broken_ = what;
  }

  void add_client(int i) {
    Client client;
    // The first is good, and the second floods: so fairness is always tested.
    client.kind = i == 0   ? Kind::kGood
                  : i == 1 ? Kind::kFlooder
                           : static_cast<Kind>(below(static_cast<int>(Kind::kGarbage) + 1));
    client.host = absl::StrCat("10.0.0.", i + 1);
    client.large = below(2) == 0;
    if (client.kind != Kind::kUnauthenticated) client.name = absl::StrCat("client", i);
    clients_.push_back(std::move(client));
  }

  // --- Clients

  void act(Client& client) {
    if (client.socket != 0 && net_->closed(client.socket)) lose(client);
    if (client.socket == 0) return connect(client);
    read(client);
    if (client.socket == 0) return;
    switch (client.kind) {
      case Kind::kGood:
        if (client.expected.size() < 2 && client.outgoing.empty()) ask(client, below(3000), 300);
        return send(client, client.outgoing.size());
      case Kind::kFlooder:
        // Many connections that are neither read nor closed.
        for (int i = 0; i < 6 && client.connections < 60; ++i) {
          ++client.connections;
          ask(client, client.large ? 20'000 + below(60'000) : below(2000), 10);
          send(client, client.outgoing.size());
          leave(client);
          connect(client);
        }
        return;
      case Kind::kLeaver:
        if (client.outgoing.empty()) ask(client, below(60'000), 50'000);
        send(client, static_cast<size_t>(below(90'000)));
        if (below(2) == 0) {
          below(2) == 0 ? net_->reset_client(client.socket) : net_->close_client(client.socket);
          leave(client);
        }
        return;
      case Kind::kNonReader:
        net_->set_capacity(client.socket, 1000);
        if (client.expected.empty()) ask(client, below(1000), 200'000);
        return send(client, client.outgoing.size());
      case Kind::kSlowSender:
        if (client.outgoing.empty()) ask(client, 50'000, 10);
        return send(client, static_cast<size_t>(1 + below(40)));
      case Kind::kUnauthenticated:
        if (!client.expected.empty()) fail("a refused request got no answer");
        for (int i = 0; i < 2; ++i) ask(client, below(2) * 50'000, 10);
        return send(client, client.outgoing.size());
      case Kind::kGarbage:
        client.outgoing = below(2) == 0 ? std::string(static_cast<size_t>(below(2000)), 'x')
                                        : "POST / HTTP/1.1\r\nContent-Length: \x0b"
                                          "5\r\n\r\n";
        return send(client, client.outgoing.size());
    }
  }

  void connect(Client& client) {
    client.socket = net_->connect(client.host);
    server_->add_connection(client.socket);
  }

  void leave(Client& client) {
    client.socket = 0;
    client.expected.clear();
    client.outgoing.clear();
    client.received.clear();
    client.handed_over = 0;
    client.closing = false;
  }

  void lose(Client& client) {
    read(client);
    if (client.socket == 0) return;
    const bool whole = client.expected.empty() && client.outgoing.empty();
    if (client.kind == Kind::kGood && !whole && !drained_) fail("a good client was disconnected");
    leave(client);
  }

  void ask(Client& client, int body, int answer_bytes) {
    const bool has_token = !client.name.empty();
    const Request request = {next_id_++, static_cast<size_t>(below(answer_bytes) + 1), has_token,
                             !has_token && body == 0};
    const std::string head =
        absl::StrCat("POST /", request.id, "/", request.size, " HTTP/1.1\r\nHost: h\r\n",
                     has_token ? absl::StrCat("Authorization: ", client.name, "\r\n") : "",
                     below(4) == 0 ? "Expect: 100-continue\r\n" : "");
    if (body > 0 && below(4) == 0) {
      absl::StrAppend(&client.outgoing, head, "Transfer-Encoding: chunked\r\n\r\n", absl::Hex(body),
                      "\r\n", std::string(static_cast<size_t>(body), 'b'), "\r\n0\r\n\r\n");
    } else {
      absl::StrAppend(&client.outgoing, head, "Content-Length: ", body, "\r\n\r\n",
                      std::string(static_cast<size_t>(body), 'b'));
    }
    client.expected.push_back(request);
  }

  void send(Client& client, size_t most) {
    const size_t n = std::min(most, client.outgoing.size());
    net_->send_to_server(client.socket, absl::string_view(client.outgoing).substr(0, n));
    client.outgoing.erase(0, n);
    client.handed_over = client.outgoing.empty() ? 0 : client.handed_over + n;
  }

  void read(Client& client) {
    if (client.kind == Kind::kNonReader || client.kind == Kind::kFlooder) return;
    client.received += net_->read_from_server(client.socket);
    while (!client.closing && read_response(client)) {
    }
    if (!client.closing) return;
    net_->close_client(client.socket);
    leave(client);
  }

  // Takes one whole response from `received`.
  bool read_response(Client& client) {
    const absl::string_view all = client.received;
    const size_t head_end = all.find("\r\n\r\n");
    if (head_end == absl::string_view::npos) return false;
    const std::string head(all.substr(0, head_end + 4));
    const std::string status = head.substr(9, 3);
    std::string body;
    size_t used = head.size();
    if (status == "100") {
      if (client.expected.empty() || !client.expected.front().admitted) {
        fail("\"100 Continue\" for a refused request");
      }
      client.received.erase(0, used);
      return true;
    }
    if (const size_t at = head.find("Content-Length: "); at != std::string::npos) {
      const auto length = static_cast<size_t>(std::stoi(head.substr(at + 16)));
      if (all.size() < used + length) return false;
      body = std::string(all.substr(used, length));
      used += length;
    } else {
      for (;;) {
        const size_t line = all.find("\r\n", used);
        if (line == absl::string_view::npos) return false;
        const auto length =
            static_cast<size_t>(std::stoi(std::string(all.substr(used, line - used)), nullptr, 16));
        if (all.size() < line + 2 + length + 2) return false;
        absl::StrAppend(&body, all.substr(line + 2, length));
        used = line + 2 + length + 2;
        if (length == 0) break;
      }
    }
    client.received.erase(0, used);
    on_response(client, head, status, body);
    return true;
  }

  void on_response(Client& client, const std::string& head, const std::string& status,
                   const std::string& body) {
    // Of clients that send garbage, or too slowly.
    const bool full = status == "429" && client.kind == Kind::kGarbage;
    const bool refused =
        full || status == "400" || status == "408" || status == "413" || status == "431";
    if (refused) {
      if (client.kind == Kind::kGood) fail("a good client was refused: " + status);
      return;
    }
    if (client.expected.empty())
      return fail(absl::StrCat("a response without a request: ", status));
    const Request request = client.expected.front();
    client.expected.pop_front();
    const bool ends = head.find("Connection: close\r\n") != std::string::npos;
    client.closing = ends;
    if (status == "401") {
      if (request.admitted) fail("a request with a token was refused");
      if (ends && request.keeps && !drained_) fail("a connection was closed without need");
    } else if (status == "200") {
      if (!request.admitted) fail("a request without a token was served");
      if (head.find(absl::StrCat("X-Id: ", request.id, "\r\n")) == std::string::npos ||
          body != answer(request.id, request.size)) {
        fail(absl::StrCat("a wrong answer to request ", request.id, ": ", head, body.size(), " of ",
                          request.size, " bytes"));
      }
    } else if (status != "429" && !(status == "503" && drained_)) {
      fail("unexpected status " + status);
    }
  }

  // --- The server's side

  void begin(std::shared_ptr<HttpExchange> exchange) {
    if (exchange->client.empty()) return fail("a request without a token reached its call");
    const std::string client = exchange->client;
    const auto cost = static_cast<int64_t>(exchange->message.body.size()) + 4096;
    auto made = std::make_unique<Call>(this, std::move(exchange));
    Call* const call = made.get();
    calls_[call->id] = std::move(made);
    call->turns_before = turns_run_;
    call->turn = turns_.enter(client, cost, [this, call, client](const absl::Status& status) {
      // One turn of others per client and 4096 units of the good client's own service.
      const int waited = turns_run_ - call->turns_before;
      if (status.ok() && client == "client0" && waited > 3 * std::ssize(clients_) + 3) {
        fail(absl::StrCat("a good client waited for ", waited, " turns"));
      }
      call->parsed(status);
    });
  }

  void run_turn() {
    if (turns_.run_one()) ++turns_run_;
  }

  void advance_call() {
    std::vector<Call*> ready;
    for (const auto& [id, call] : calls_) {
      const bool idle = call->exchange != nullptr && !call->posted && !call->writing;
      if (idle && !call->ending && call->state != Call::State::kWaiting)
        ready.push_back(call.get());
    }
    if (ready.empty()) return;
    Call* const call = ready[static_cast<size_t>(below(static_cast<int>(ready.size())))];
    call->posted = true;
    server_->post(call);
  }

  void drain() {
    drained_ = true;
    server_->drain();
    turns_.stop(absl::UnavailableError("draining"));
    settle();
    while (turns_.run_one()) {
    }
  }

  void settle() {
    if (!pulse_.beaten) fail("the server's thread did not run a task");
    pulse_.beaten = false;
    server_->post(&pulse_);
    for (int i = 0; i < 6; ++i) server_->step();
  }

  void check() {
    size_t bodies = 0;
    size_t answers = 0;
    for (const auto& [id, call] : calls_) {
      if (call->exchange == nullptr) continue;
      bodies += call->exchange->message.body.capacity();
      if (call->gone && !call->exchange->message.body.empty())
        fail("a body of a lost client is held");
      if (call->writing || call->ending) answers += 2 * call->size + 2048;
    }
    const auto used = static_cast<size_t>(account_.used());
    // Refusals, and input behind a request, are charged even above the limit.
    const size_t slack = (64 << 10) + 1024 * static_cast<size_t>(net_->open());
    if (used > static_cast<size_t>(account_.total()) + answers + slack) fail("above the limit");
    if (used < bodies + arriving() + unsent()) fail("memory is not charged");
    if (turns_.longest_running() != Duration::zero()) fail("a task runs for ever");
  }

  // At least these bytes of whole responses wait in the server.
  size_t unsent() const {
    constexpr size_t kInNetwork = 65 << 10;
    size_t bytes = 0;
    for (const auto& [id, call] : calls_) {
      const bool whole = call->state == Call::State::kRunning && id % 2 == 0;
      const bool waits = call->exchange != nullptr && call->ending && !call->gone;
      if (whole && waits && call->size > kInNetwork) bytes += call->size - kInNetwork;
    }
    return bytes;
  }

  // At least these bytes of bodies have been read by the server, and more follow.
  size_t arriving() const {
    constexpr size_t kHead = 300;
    size_t bytes = 0;
    for (const Client& client : clients_) {
      const bool sends = client.socket != 0 && client.handed_over > kHead;
      if (!sends || client.name.empty() || net_->closed(client.socket)) continue;
      // Not if a response has come: the body may have been refused.
      if (net_->unread_output(client.socket) > 0 || client.kind == Kind::kGarbage) continue;
      bytes += client.handed_over -
               std::min(client.handed_over, kHead + net_->unread_input(client.socket));
    }
    return bytes;
  }

  // Clients become silent. In time every connection, call and charge ends.
  void finish() {
    if (!broken_.empty()) return;
    bool waiting = true;
    for (int i = 0; i < 3000 && waiting; ++i) {
      run_turn();
      advance_call();
      settle();
      waiting = good_clients_wait();
    }
    if (waiting) return fail("a good client got no answer");
    check();
    for (int i = 0; i < 1200 && broken_.empty(); ++i) {
      clock_.advance(std::chrono::milliseconds(500));
      run_turn();
      advance_call();
      settle();
    }
    if (!broken_.empty()) return;
    if (net_->open() != 0) return fail(absl::StrCat(net_->open(), " connections are left"));
    if (server_->exchanges() != 0)
      return fail(absl::StrCat(server_->exchanges(), " calls are left"));
    if (account_.used() != 0 || account_.charges() != 0) fail("memory is left in the account");
  }

  bool good_clients_wait() {
    bool waiting = false;
    for (Client& client : clients_) {
      if (client.kind != Kind::kGood || client.socket == 0) continue;
      net_->closed(client.socket) ? lose(client) : read(client);
      waiting = waiting || !client.expected.empty();
    }
    return waiting;
  }

  std::mt19937_64 rng_;
  VirtualClock clock_;
  MemoryAccount account_{1 << 20};
  std::map<int, std::unique_ptr<Call>> calls_;
  std::vector<Client> clients_;
  Pulse pulse_;
  ClientTurns turns_;
  SimulatedNetwork* net_ = nullptr;
  std::unique_ptr<HttpServer> server_;
  int next_id_ = 1;
  int turns_run_ = 0;
  bool drained_ = false;
  std::string broken_;
};

}  // namespace tandem::test
