#include "server/edge/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/edge/acceptor.h"
#include "server/edge/http_status.h"

namespace tandem {
namespace {

constexpr size_t kPiece = 64 << 10;  // per read
constexpr size_t kMaxEvents = 256;
constexpr auto kSweep = std::chrono::milliseconds(250);
constexpr int kWhileStopping = 10;  // milliseconds
constexpr Duration kLingerTime = std::chrono::seconds(2);
constexpr size_t kLingerBytes = 1 << 20;

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string peer_at(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return "";
  const std::string peer = peer_of(name);
  return peer.empty() ? "unix:" : peer;
}

}  // namespace

struct HttpConnection {
  enum class State { kReading, kResponding, kLingering, kClosed };

  HttpConnection(Fd f, HttpReader::Limits limits)
      : fd(std::move(f)),
        peer(peer_at(fd.get())),
        host(host_of(peer)),
        reader(limits),
        born(now()) {}

  void send_error(int status, const std::string& body) {
    out += absl::StrCat("HTTP/1.1 ", status, " ", http_reason(status),
                        "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
                        status == 429 ? "\r\nRetry-After: 1" : "", "\r\nConnection: close\r\n\r\n",
                        body);
    keep_alive = false;
  }

  Fd fd;
  const std::string peer, host;
  bool too_many = false;  // above the connection limit
  State state = State::kReading;
  HttpReader reader;
  size_t held = 0;  // the counted bytes of the reader
  std::string in;   // input that follows the current request
  std::string out;
  size_t sent = 0;  // of `out`
  bool keep_alive = true;
  bool in_chunks = true;
  bool notified = true;  // false: written() is due
  bool ended = false;    // `out` ends the response
  std::shared_ptr<HttpExchange> exchange;
  const TimePoint born;
  TimePoint deadline = kNever;
  size_t lingered = 0;   // discarded bytes
  uint32_t watched = 0;  // events
};

// --- HttpExchange

HttpExchange::HttpExchange(HttpServer* server, HttpConnection* connection, HttpMessage m,
                           std::string p)
    : message(std::move(m)), peer(std::move(p)), server_(*server), connection_(connection) {
  server_.exchanges_.fetch_add(1);
}

HttpExchange::~HttpExchange() { server_.exchanges_.fetch_sub(1); }

void HttpExchange::begin(int status, const HttpHeaders& headers) {
  begun_ = true;
  if (connection_ == nullptr) return;
  HttpConnection& c = *connection_;
  if (server_.drained_ || now() - c.born > server_.bounds_.age) c.keep_alive = false;
  absl::StrAppend(&c.out, "HTTP/1.1 ", status, " ", http_reason(status), "\r\n");
  bool sized = false;
  for (const auto& [name, value] : headers) {
    absl::StrAppend(&c.out, name, ": ", value, "\r\n");
    sized = sized || name == "Content-Length";
  }
  if (!sized && !c.in_chunks) c.keep_alive = false;  // the end of the connection ends the response
  c.in_chunks = !sized && c.in_chunks;
  if (c.in_chunks) absl::StrAppend(&c.out, "Transfer-Encoding: chunked\r\n");
  absl::StrAppend(&c.out, c.keep_alive ? "\r\n" : "Connection: close\r\n\r\n");
}

void HttpExchange::write(absl::string_view bytes) { put(bytes, false); }

void HttpExchange::end(absl::string_view last_bytes) { put(last_bytes, true); }

void HttpExchange::respond(int status, const HttpHeaders& headers, absl::string_view body) {
  HttpHeaders all = headers;
  all.emplace_back("Content-Length", absl::StrCat(body.size()));
  begin(status, all);
  end(connection_ != nullptr && message.method == "HEAD" ? "" : body);
}

void HttpExchange::put(absl::string_view bytes, bool last) {
  if (connection_ == nullptr) {
    server_.notifications_.push_back({shared_from_this(), /*written=*/true, /*ok=*/false});
    return;
  }
  HttpConnection& c = *connection_;
  if (c.in_chunks && !bytes.empty()) {
    absl::StrAppend(&c.out, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
  } else {
    c.out.append(bytes.data(), bytes.size());
  }
  if (c.in_chunks && last) c.out += "0\r\n\r\n";
  server_.put(c, last);
}

// --- HttpServer

HttpServer::HttpServer(Bounds bounds, Handlers handlers)
    : bounds_(bounds),
      handlers_(std::move(handlers)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      thread_([this] { run(); }) {}

HttpServer::~HttpServer() { stop(); }

void HttpServer::add_connection(int fd) {
  const MutexLock lock(&mutex_);
  accepted_.emplace_back(fd);
  if (std::exchange(sleeping_, false)) wake_.wake();
}

void HttpServer::post(Work* work) {
  const MutexLock lock(&mutex_);
  posted_.push_back(work);
  if (std::exchange(sleeping_, false)) wake_.wake();
}

void HttpServer::drain() {
  const MutexLock lock(&mutex_);
  draining_ = true;
  if (std::exchange(sleeping_, false)) wake_.wake();
}

void HttpServer::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.wake();
  thread_.join();
}

void HttpServer::run() {
  epoll_event own = {EPOLLIN, {}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.fd(), &own);  // data.ptr stays null
  std::array<epoll_event, kMaxEvents> events;
  while (process_queues()) {
    const bool busy = !notifications_.empty() || !next_.empty();
    int wait = connections_.empty() ? -1 : static_cast<int>(kSweep.count());
    if (stopped_) wait = kWhileStopping;
    {
      const MutexLock lock(&mutex_);
      sleeping_ = !busy && accepted_.empty() && posted_.empty();
      if (!sleeping_) wait = 0;
    }
    const int n = epoll_wait(epoll_.get(), events.data(), kMaxEvents, wait);
    {
      const MutexLock lock(&mutex_);
      sleeping_ = false;
    }
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.ptr == nullptr) {
        wake_.clear();
      } else {
        on_events(*static_cast<HttpConnection*>(event.data.ptr), event.events);
      }
    }
    for (HttpConnection* const c : std::exchange(next_, {})) {
      if (c->state == HttpConnection::State::kReading) parse(*c, std::exchange(c->in, {}));
    }
    notify_listeners();
    sweep();
    dead_.clear();  // neither an event nor next_ refers to them any more
  }
}

bool HttpServer::process_queues() {
  std::vector<Fd> accepted;
  std::vector<Work*> posted;
  bool stopping = false;
  bool drain = false;
  {
    const MutexLock lock(&mutex_);
    accepted.swap(accepted_);
    posted.swap(posted_);
    stopping = stopping_;
    drain = draining_ && !drained_;
  }
  for (Fd& fd : accepted) {
    if (!stopping) admit(std::move(fd));
  }
  for (Work* const work : posted) work->work();
  if (drain || stopping) {
    drained_ = true;
    std::vector<HttpConnection*> idle;
    for (const auto& [c, owner] : connections_) {
      const bool is_idle = c->state == HttpConnection::State::kReading && !c->reader.begun();
      if (stopping || is_idle) idle.push_back(c);
    }
    for (HttpConnection* const c : idle) close(*c);
  }
  stopped_ = stopping;
  return !stopping || exchanges_.load() > 0;
}

void HttpServer::admit(Fd fd) {
  auto made = std::make_unique<HttpConnection>(
      std::move(fd), HttpReader::Limits{bounds_.head_bytes, bounds_.body_bytes});
  HttpConnection& c = *made;
  connections_.emplace(&c, std::move(made));
  c.too_many = connections_.size() > bounds_.connections;
  c.deadline = now() + bounds_.head_time;
  // Unsent bytes wait here, where they are counted, and not in the kernel.
  const int unsent = 128 << 10;
  setsockopt(c.fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
  epoll_event event = {c.watched = EPOLLIN | EPOLLRDHUP, {.ptr = &c}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, c.fd.get(), &event) != 0) close(c);
}

void HttpServer::on_events(HttpConnection& c, uint32_t events) {
  if (c.state == HttpConnection::State::kClosed) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return close(c);
  if ((events & EPOLLIN) != 0) {
    c.state == HttpConnection::State::kLingering ? linger(c) : read(c);
  } else if ((events & EPOLLRDHUP) != 0) {
    return close(c);  // a half-closed connection counts as closed
  }
  if ((events & EPOLLOUT) != 0 && c.state != HttpConnection::State::kClosed) flush(c);
}

void HttpServer::read(HttpConnection& c) {
  static thread_local std::array<char, kPiece> piece;
  const ssize_t n = recv(c.fd.get(), piece.data(), piece.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return close(c);
  parse(c, {piece.data(), static_cast<size_t>(n)});
}

// Discards input after a rejected request for a while. If the connection were closed with unread
// bytes, the kernel would reset it, and the client might not receive the response.
void HttpServer::linger(HttpConnection& c) {
  std::array<char, 4096> piece;
  const ssize_t n = recv(c.fd.get(), piece.data(), piece.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  c.lingered += n > 0 ? static_cast<size_t>(n) : 0;
  if (n <= 0 || c.lingered > kLingerBytes) close(c);
}

void HttpServer::parse(HttpConnection& c, absl::string_view bytes) {
  if (bytes.empty()) return;
  const bool had_begun = c.reader.begun();
  const HttpReader::State before = c.reader.state();
  const size_t taken = c.reader.consume(bytes);
  const HttpReader::State after = c.reader.state();
  hold(c, c.reader.held_bytes());
  if (after == HttpReader::State::kRefused) return refuse(c, c.reader.refusal());
  if (exceeds_memory(c)) return refuse(c, 429);
  if (after == HttpReader::State::kWhole) {
    c.in.assign(bytes.data() + taken, bytes.size() - taken);
    return dispatch(c);
  }
  if (!had_begun) c.deadline = now() + bounds_.head_time;
  if (before != after) c.deadline = now() + bounds_.body_time;
  if (c.reader.take_expectation()) {
    c.out += "HTTP/1.1 100 Continue\r\n\r\n";
    flush(c);
  }
}

void HttpServer::dispatch(HttpConnection& c) {
  if (c.too_many) return refuse(c, 429);
  HttpMessage message = c.reader.take();
  c.state = HttpConnection::State::kResponding;
  c.deadline = kNever;
  c.keep_alive = message.keep_alive;
  c.in_chunks = message.in_chunks;
  c.ended = false;
  c.exchange = std::make_shared<HttpExchange>(this, &c, std::move(message), c.peer);
  watch(c);
  handlers_.request(c.exchange);
}

void HttpServer::refuse(HttpConnection& c, int status) {
  c.reader.take();  // drops bytes that are no longer counted
  c.state = HttpConnection::State::kResponding;
  c.send_error(status, handlers_.error(status));
  c.ended = true;
  c.in.clear();
  flush(c);
}

// The bytes count until the response ends, because the call may hold them until then.
void HttpServer::hold(HttpConnection& c, size_t bytes) {
  held_ += bytes - c.held;
  if (!c.host.empty()) {
    const auto of_host = held_by_host_.try_emplace(c.host, 0).first;
    of_host->second += bytes - c.held;
    if (of_host->second == 0) held_by_host_.erase(of_host);
  }
  c.held = bytes;
}

bool HttpServer::exceeds_memory(const HttpConnection& c) const {
  const auto of_host = held_by_host_.find(c.host);
  return held_ > bounds_.held_bytes ||
         (of_host != held_by_host_.end() && of_host->second > host_share(bounds_.held_bytes));
}

void HttpServer::put(HttpConnection& c, bool last) {
  c.notified = false;
  c.ended = last;
  flush(c);
}

void HttpServer::flush(HttpConnection& c) {
  while (c.sent < c.out.size()) {
    const ssize_t n =
        send(c.fd.get(), c.out.data() + c.sent, c.out.size() - c.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return close(c);
    if (n > 0 || c.deadline == kNever) c.deadline = now() + bounds_.stall_time;
    if (n < 0) return watch(c);
    c.sent += static_cast<size_t>(n);
  }
  c.out.clear();
  if (c.out.capacity() > kPiece) c.out.shrink_to_fit();
  c.sent = 0;
  if (c.state != HttpConnection::State::kResponding)
    return watch(c);  // "100 Continue" has been sent
  c.deadline = kNever;
  if (!std::exchange(c.notified, true)) notifications_.push_back({c.exchange, true, true});
  c.ended ? end_exchange(c) : watch(c);
}

void HttpServer::end_exchange(HttpConnection& c) {
  if (c.exchange != nullptr) std::exchange(c.exchange, nullptr)->connection_ = nullptr;
  hold(c, 0);
  if (!c.keep_alive) {
    shutdown(c.fd.get(), SHUT_WR);
    c.state = HttpConnection::State::kLingering;
    c.deadline = now() + kLingerTime;
    return watch(c);
  }
  c.state = HttpConnection::State::kReading;
  c.deadline = now() + bounds_.idle_time;
  if (!c.in.empty()) next_.push_back(&c);
  watch(c);
}

// Updates the events to poll for: input while reading, and always a disconnect.
void HttpServer::watch(HttpConnection& c) {
  uint32_t events = c.state == HttpConnection::State::kLingering ? 0 : EPOLLRDHUP;
  if (c.state != HttpConnection::State::kResponding) events |= EPOLLIN;
  if (c.sent < c.out.size()) events |= EPOLLOUT;
  if (events == c.watched) return;
  epoll_event event = {c.watched = events, {.ptr = &c}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.fd.get(), &event);
}

void HttpServer::close(HttpConnection& c) {
  if (c.state == HttpConnection::State::kClosed) return;
  c.state = HttpConnection::State::kClosed;
  c.fd.reset();
  hold(c, 0);
  if (c.exchange != nullptr) {
    c.exchange->connection_ = nullptr;
    if (!c.notified) notifications_.push_back({c.exchange, true, false});
    notifications_.push_back({std::move(c.exchange), false, false});
  }
  std::erase(next_, &c);
  const auto it = connections_.find(&c);
  dead_.push_back(std::move(it->second));
  connections_.erase(it);
}

void HttpServer::notify_listeners() {
  for (const Notification& t : std::exchange(notifications_, {})) {
    if (t.exchange == nullptr || t.exchange->listener_ == nullptr) continue;
    t.written ? t.exchange->listener_->written(t.ok) : t.exchange->listener_->closed();
  }
}

void HttpServer::sweep() {
  const TimePoint at = now();
  if (at < swept_ + kSweep) return;
  swept_ = at;
  std::vector<HttpConnection*> late;
  for (const auto& [c, owner] : connections_) {
    if (c->deadline <= at) late.push_back(c);
  }
  for (HttpConnection* const c : late) {
    const bool unfinished = c->state == HttpConnection::State::kReading && c->reader.begun();
    unfinished && c->out.empty() ? refuse(*c, 408) : close(*c);
  }
}

}  // namespace tandem
