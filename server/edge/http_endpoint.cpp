#include "server/edge/http_endpoint.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/thread.h"
#include "server/edge/http_status.h"
#include "server/edge/peer.h"

namespace tandem {
namespace {

constexpr Duration kRequestTime = std::chrono::seconds(2);
constexpr Duration kResponseTime = std::chrono::seconds(5);

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string head(int status, size_t length, absl::string_view type) {
  return absl::StrCat("HTTP/1.1 ", status, " ", http_reason(status), "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", length,
                      "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
}

// The value of the first Host header; empty: there is none.
absl::string_view host_header(absl::string_view bytes) {
  for (absl::string_view line : absl::StrSplit(bytes, "\r\n")) {
    if (line.empty()) break;
    if (!absl::StartsWithIgnoreCase(line, "host:")) continue;
    return absl::StripAsciiWhitespace(line.substr(5));
  }
  return "";
}

std::string host_at(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return "";
  return host_of(name);
}

}  // namespace

HttpRequest parse_http_request(absl::string_view bytes) {
  HttpRequest out;
  const auto refuse = [&out](int status) {
    out.status = status;
    return out;
  };
  if (bytes.find("\r\n\r\n") == absl::string_view::npos) {
    return refuse(bytes.size() >= HttpEndpoint::kMaxRequest ? 431 : 0);
  }
  const absl::string_view line = bytes.substr(0, bytes.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = first == absl::string_view::npos ? first : line.find(' ', first + 1);
  if (second == absl::string_view::npos || !absl::StartsWith(line.substr(second + 1), "HTTP/1.")) {
    return refuse(400);
  }
  const absl::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") return refuse(405);
  out.head_only = method == "HEAD";
  out.host = host_header(bytes);
  const absl::string_view target = line.substr(first + 1, second - first - 1);
  out.path = target.substr(0, target.find('?'));
  return refuse(200);
}

struct HttpEndpoint::Connection {
  enum class State { kReading, kWaiting, kWriting, kDone };

  explicit Connection(Fd accepted)
      : fd(std::move(accepted)), host(host_at(fd.get())), deadline(now() + kRequestTime) {}

  void write(std::string first, std::shared_ptr<const std::string> rest = nullptr) {
    out = std::move(first);
    body = head_only ? nullptr : std::move(rest);
    state = State::kWriting;
    deadline = now() + kResponseTime;
    flush();
  }
  void respond(int status, const std::string& text) {
    write(absl::StrCat(head(status, text.size(), "text/plain"), head_only ? "" : text));
  }

  // Sends as much as the socket accepts.
  void flush() {
    while (state == State::kWriting) {
      const bool in_head = sent < out.size();
      const size_t skipped = in_head ? sent : sent - out.size();
      const size_t end = in_head ? out.size() : body ? body->size() : 0;
      if (skipped == end) {
        shutdown(fd.get(), SHUT_WR);
        state = State::kDone;
        return;
      }
      const char* const from = (in_head ? out.data() : body->data()) + skipped;
      const ssize_t n = send(fd.get(), from, end - skipped, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) state = State::kDone;
        return;
      }
      sent += static_cast<size_t>(n);
    }
  }

  Fd fd;
  const std::string host;
  TimePoint deadline;
  State state = State::kReading;
  bool head_only = false;
  bool scrape = false;
  uint64_t ticket = 0;  // kWaiting: the scrape's number
  std::string in;       // at most kMaxRequest
  std::string out;
  std::shared_ptr<const std::string> body;  // follows `out`
  size_t sent = 0;                          // of both
};

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::start(const std::string& address,
                                                                  Handlers handlers) {
  auto listener = listen_on("http", address);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(*std::move(listener), std::move(handlers)));
}

HttpEndpoint::HttpEndpoint(Listener listener, Handlers handlers)
    : listener_(std::move(listener)),
      handlers_(std::move(handlers)),
      poller_(start_thread("the metrics port", [this] { run(); })) {
  try {
    renderer_ = start_thread("rendering metrics", [this] { render(); });
  } catch (...) {
    stop();
    throw;
  }
}

HttpEndpoint::~HttpEndpoint() { stop(); }

void HttpEndpoint::stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  wake_.wake();
  poller_.join();
  if (renderer_.joinable()) renderer_.join();
}

void HttpEndpoint::run() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.clear();
    polled.push_back({wake_.fd(), POLLIN, 0});
    for (const Fd& socket : listener_.sockets) polled.push_back({socket.get(), POLLIN, 0});
    const size_t first = polled.size();
    TimePoint next = kNever;
    for (const auto& c : connections_) {
      using State = Connection::State;
      const auto events = static_cast<short>(c->state == State::kWriting   ? POLLOUT
                                             : c->state == State::kReading ? POLLIN
                                                                           : 0);
      polled.push_back({c->fd.get(), events, 0});
      next = std::min(next, c->deadline);
    }
    int wait = -1;
    if (next != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now());
      wait = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    poll(polled.data(), polled.size(), wait);
    if (polled[0].revents != 0) {
      wake_.clear();
      const MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    for (size_t i = first; i < polled.size(); ++i) {
      if (polled[i].revents != 0) serve(*connections_[i - first]);
    }
    close_ended();  // before others are accepted, which may need the descriptors
    take_connections();
    send_metrics();
    close_ended();
  }
}

void HttpEndpoint::close_ended() {
  const TimePoint at = now();
  std::erase_if(connections_, [this, at](const auto& c) {
    const bool ended = c->state == Connection::State::kDone || c->deadline <= at;
    if (ended) socket_acceptor_.close(std::move(c->fd));
    return ended;
  });
}

void HttpEndpoint::take_connections() {
  for (const Fd& socket : listener_.sockets) {
    // Bounded per poll, so that open connections are served too.
    for (size_t i = 0; i < kMaxConnections; ++i) {
      Fd fd;
      const SocketAcceptor::Result result = socket_acceptor_.accept(socket.get(), &fd);
      if (result == SocketAcceptor::Result::kNone) break;
      if (result == SocketAcceptor::Result::kDropped) continue;
      if (connections_.size() >= kMaxConnections) evict();
      auto connection = std::make_unique<Connection>(std::move(fd));
      serve(*connection);  // most requests have already arrived
      if (connection->state == Connection::State::kDone) {
        socket_acceptor_.close(std::move(connection->fd));
      } else {
        connections_.push_back(std::move(connection));
      }
    }
  }
}

void HttpEndpoint::evict() {
  std::map<absl::string_view, size_t> by_host;
  size_t most = 0;
  for (const auto& c : connections_) most = std::max(most, ++by_host[c->host]);
  const auto of_most = [&](const auto& c) { return by_host[c->host] == most; };
  auto victim = std::find_if(connections_.begin(), connections_.end(), [&](const auto& c) {
    return of_most(c) &&
           (c->state == Connection::State::kReading || c->state == Connection::State::kDone);
  });
  if (victim == connections_.end()) {
    victim = std::find_if(connections_.begin(), connections_.end(), of_most);
  }
  socket_acceptor_.close(std::move((*victim)->fd));
  connections_.erase(victim);
}

void HttpEndpoint::serve(Connection& connection) {
  switch (connection.state) {
    case Connection::State::kReading:
      return read_request(connection);
    case Connection::State::kWaiting:  // the client has disconnected
      connection.state = Connection::State::kDone;
      return;
    case Connection::State::kWriting:
      return connection.flush();
    case Connection::State::kDone:
      return;
  }
}

void HttpEndpoint::read_request(Connection& connection) {
  char bytes[kMaxRequest];
  const ssize_t n =
      recv(connection.fd.get(), bytes, kMaxRequest - connection.in.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    connection.state = Connection::State::kDone;
    return;
  }
  connection.in.append(bytes, static_cast<size_t>(n));
  respond(connection, connection.in);
}

void HttpEndpoint::respond(Connection& connection, absl::string_view bytes) {
  const HttpRequest request = parse_http_request(bytes);
  if (request.status == 0) return;
  connection.head_only = request.head_only;
  if (request.status != 200) {
    return connection.respond(request.status, absl::StrCat(http_reason(request.status), "\n"));
  }
  if (request.path == "/healthz" || request.path == "/readyz") {
    const HttpResponse response =
        request.path == "/healthz" ? handlers_.alive() : handlers_.ready();
    return connection.respond(response.status, response.body);
  }
  const bool gateway = request.path == "/metrics/gateway";
  if (request.path != "/metrics" && !gateway) {
    return connection.respond(
        404, "not found; available: /metrics, /metrics/gateway, /healthz, /readyz\n");
  }
  // Probes are exempt: proxies send the name of a cluster as their Host.
  if (handlers_.local_only && !request.host.empty() && !is_local_name(request.host)) {
    return connection.respond(403, "Host must be localhost, 127.0.0.1 or [::1]\n");
  }
  if (gateway) {
    const HttpResponse page = handlers_.gateway();
    return connection.respond(page.status, page.body);
  }
  if (scrapes() >= kMaxScrapes) return connection.respond(503, "too many scrapes at once\n");
  connection.scrape = true;
  connection.state = Connection::State::kWaiting;
  connection.deadline = now() + kResponseTime;
  connection.ticket = ++asked_;
  {
    const MutexLock lock(&mutex_);
    wanted_ = asked_;
  }
  changed_.notify_one();
}

size_t HttpEndpoint::scrapes() const {
  return static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(),
                                           [](const auto& c) { return c->scrape; }));
}

// A scrape gets metrics whose rendering began after it.
void HttpEndpoint::send_metrics() {
  std::shared_ptr<const std::string> metrics;
  uint64_t rendered = 0;
  {
    const MutexLock lock(&mutex_);
    metrics = metrics_;
    rendered = rendered_;
  }
  for (const auto& c : connections_) {
    if (c->state != Connection::State::kWaiting || c->ticket > rendered) continue;
    c->write(head(200, metrics->size(), "text/plain; version=0.0.4; charset=utf-8"), metrics);
  }
}

void HttpEndpoint::render() {
  MutexLock lock(&mutex_);
  for (;;) {
    changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || wanted_ > rendered_;
    });
    if (stopping_) return;
    const uint64_t wanted = wanted_;
    lock.unlock();
    auto made = std::make_shared<const std::string>(handlers_.metrics());
    lock.lock();
    metrics_ = std::move(made);
    rendered_ = wanted;
    wake_.wake();
  }
}

}  // namespace tandem
