#include "server/edge/http_server.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "server/edge/http_mutation.h"
#include "server/edge/http_status.h"

namespace tandem {
namespace {

constexpr size_t kPiece = 64 << 10;      // per read
constexpr size_t kKeptOutput = 4 << 10;  // capacity that an idle connection keeps
constexpr Duration kSweep = std::chrono::milliseconds(250);
constexpr Duration kWhileStopping = std::chrono::milliseconds(10);
constexpr Duration kLingerTime = std::chrono::seconds(2);
constexpr size_t kLingerBytes = 1 << 20;

// Approximate memory of the objects themselves: of a connection, and of an exchange with its call.
constexpr size_t kConnectionBytes = 2 << 10;
constexpr size_t kExchangeBytes = 4 << 10;

int64_t exchange_bytes(const HttpMessage& message) {
  size_t bytes = kExchangeBytes + message.path.capacity() + message.body.capacity();
  for (const auto& [name, value] : message.headers) bytes += name.capacity() + value.capacity();
  return static_cast<int64_t>(bytes);
}

}  // namespace

struct HttpConnection {
  enum class State { kReading, kResponding, kLingering, kClosed };

  HttpConnection(int s, std::string p, HttpReader::Limits limits, TimePoint at)
      : socket(s), peer{std::move(p), ""}, host(host_of(peer.address)), reader(limits), born(at) {}

  // A response without an exchange.
  void respond(const HttpReply& reply, const HttpHeaders& common, bool with_body) {
    absl::StrAppend(&out, "HTTP/1.1 ", reply.status, " ", http_reason(reply.status), "\r\n");
    for (const HttpHeaders* const headers : {&common, &reply.headers}) {
      for (const auto& [name, value] : *headers) absl::StrAppend(&out, name, ": ", value, "\r\n");
    }
    absl::StrAppend(&out, "Content-Length: ", reply.body.size(),
                    keep_alive ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n",
                    with_body ? reply.body : "");
  }
  bool idle() const { return state == State::kReading && !reader.begun(); }
  absl::string_view unsent() const {
    if (sent < out.size()) return absl::string_view(out).substr(sent);
    return constant.substr(sent - out.size());
  }

  const int socket;
  HttpPeer peer;
  const std::string host;
  bool too_many = false;  // above the limit of connections, or of memory
  State state = State::kReading;
  HttpReader reader;
  MemoryAccount::Charge charge;          // of the head, `in` and `out`
  MemoryAccount::Charge request_charge;  // of the request after its head, until it is dispatched
  HttpAdmission admission;               // of the current request
  std::string in;                        // input that follows the current request
  std::string out;
  absl::string_view constant;  // follows `out`
  size_t sent = 0;             // of both
  bool keep_alive = true;
  bool in_chunks = true;
  bool notified = true;  // false: written() is due
  bool ended = false;    // `out` ends the response
  std::shared_ptr<HttpExchange> exchange;
  const TimePoint born;
  TimePoint read_deadline = kNever;
  TimePoint write_deadline = kNever;
  TimePoint end_deadline = kNever;
  TimePoint write_began;
  int64_t written = 0;   // bytes since then
  size_t lingered = 0;   // discarded bytes
  uint32_t watched = 0;  // events
};

// --- HttpExchange

HttpExchange::HttpExchange(HttpServer* server, HttpConnection* connection, HttpMessage m)
    : message(std::move(m)),
      client(std::move(connection->admission.client)),
      peer(connection->peer),
      charge(std::move(connection->request_charge)),
      server_(*server),
      connection_(connection),
      common_(std::move(connection->admission.common)) {
  charge.resize(exchange_bytes(message));
  server_.exchanges_.fetch_add(1);
}

// The server may be destroyed as soon as its last exchange is not counted.
HttpExchange::~HttpExchange() {
  charge.release();
  server_.exchanges_.fetch_sub(1);
}

void HttpExchange::drop_body() {
  std::string().swap(message.body);  // assigning an empty string would keep the memory
  charge.resize(exchange_bytes(message));
}

void HttpExchange::begin(int status, const HttpHeaders& headers) {
  begun_ = true;
  if (connection_ == nullptr) return;
  HttpConnection& c = *connection_;
  if (server_.drained_ || server_.io_->now() - c.born > server_.bounds_.age) c.keep_alive = false;
  absl::StrAppend(&c.out, "HTTP/1.1 ", status, " ", http_reason(status), "\r\n");
  bool sized = false;
  for (const HttpHeaders* const each : {&common_, &headers}) {
    for (const auto& [name, value] : *each) {
      absl::StrAppend(&c.out, name, ": ", value, "\r\n");
      sized = sized || name == "Content-Length";
    }
  }
  if (!sized && !c.in_chunks) c.keep_alive = false;  // the end of the connection ends the response
  c.in_chunks = !sized && c.in_chunks;
  if (c.in_chunks) absl::StrAppend(&c.out, "Transfer-Encoding: chunked\r\n");
  absl::StrAppend(&c.out, c.keep_alive ? "\r\n" : "Connection: close\r\n\r\n");
}

void HttpExchange::write(absl::string_view bytes) { put(bytes, false); }

void HttpExchange::end(absl::string_view last_bytes) { put(last_bytes, true); }

void HttpExchange::begin_sized(int status, const HttpHeaders& headers, size_t size) {
  HttpHeaders all = headers;
  all.emplace_back("Content-Length", absl::StrCat(size));
  begin(status, all);
}

void HttpExchange::respond(int status, const HttpHeaders& headers, absl::string_view body) {
  begin_sized(status, headers, body.size());
  end(bodyless(status) ? "" : body);
}

void HttpExchange::respond_constant(int status, const HttpHeaders& headers,
                                    absl::string_view body) {
  begin_sized(status, headers, body.size());
  if (connection_ != nullptr && !bodyless(status)) connection_->constant = body;
  end();
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

HttpServer::HttpServer(Bounds bounds, Handlers handlers, MemoryAccount* account,
                       std::unique_ptr<HttpIo> io)
    : bounds_(bounds),
      handlers_(std::move(handlers)),
      account_(*account),
      io_(std::move(io)),
      swept_(io_->now()) {}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  thread_ = start_thread("HTTP connections", [this] {
    while (step()) {
    }
  });
}

void HttpServer::add_connection(int fd) {
  const MutexLock lock(&mutex_);
  accepted_.push_back(fd);
  if (std::exchange(sleeping_, false)) io_->wake();
}

void HttpServer::post(Work* work) {
  const MutexLock lock(&mutex_);
  posted_.push_back(work);
  if (std::exchange(sleeping_, false)) io_->wake();
}

void HttpServer::drain() {
  const MutexLock lock(&mutex_);
  draining_ = true;
  if (std::exchange(sleeping_, false)) io_->wake();
}

void HttpServer::stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  io_->wake();
  if (thread_.joinable()) return thread_.join();
  while (step()) {
  }
}

bool HttpServer::step() {
  if (!process_queues()) return false;
  const bool busy = !notifications_.empty() || !next_.empty();
  Duration wait = connections_.empty() ? Duration(-1) : kSweep;
  if (stopped_) wait = kWhileStopping;
  {
    const MutexLock lock(&mutex_);
    sleeping_ = !busy && accepted_.empty() && posted_.empty() && (!stopping_ || stopped_);
    if (!sleeping_) wait = Duration::zero();
  }
  events_.clear();
  io_->wait(wait, &events_);
  {
    const MutexLock lock(&mutex_);
    sleeping_ = false;
  }
  for (const HttpIo::Event& event : events_) {
    on_event(*static_cast<HttpConnection*>(event.tag), event.what);
  }
  for (HttpConnection* const c : std::exchange(next_, {})) {
    if (c->state == HttpConnection::State::kReading) parse(*c, std::exchange(c->in, {}));
  }
  notify_listeners();
  sweep();
  dead_.clear();  // neither an event nor next_ refers to them any more
  return true;
}

bool HttpServer::process_queues() {
  std::vector<int> accepted;
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
  for (const int socket : accepted) stopping ? io_->close(socket) : admit(socket);
  for (Work* const work : posted) work->work();
  if (drain || stopping) {
    drained_ = true;
    std::vector<HttpConnection*> idle;
    for (const auto& [c, owner] : connections_) {
      if (stopping || c->idle()) idle.push_back(c);
    }
    for (HttpConnection* const c : idle) close(*c);
  }
  stopped_ = stopping;
  return !stopping || exchanges_.load() > 0;
}

void HttpServer::admit(int socket) {
  auto made = std::make_unique<HttpConnection>(
      socket, io_->peer(socket), HttpReader::Limits{bounds_.head_bytes, bounds_.body_bytes},
      io_->now());
  HttpConnection& c = *made;
  connections_.emplace(&c, std::move(made));
  const size_t of_io = io_->memory(socket);
  auto charge = account_.charge(c.host, c.host, static_cast<int64_t>(kConnectionBytes + of_io));
  c.too_many = connections_.size() > bounds_.connections || !charge.ok();
  // A few bytes remain uncounted, to respond with 429, but not those of a TLS handshake.
  if (!charge.ok() && of_io > 0) return close(c);
  if (charge.ok()) c.charge = *std::move(charge);
  c.read_deadline = c.born + bounds_.head_time;
  c.watched = HttpIo::kInput | HttpIo::kPeerClosed;
  if (!io_->add(c.socket, c.watched, &c)) close(c);
}

void HttpServer::on_event(HttpConnection& c, uint32_t what) {
  using State = HttpConnection::State;
  if (c.state == State::kClosed) return;
  if ((what & HttpIo::kFailed) != 0) return close(c);
  // Input that was read before comes first (next_).
  if (c.state == State::kReading && !c.in.empty()) what &= HttpIo::kOutput;
  if ((what & HttpIo::kInput) != 0 && c.state != State::kResponding) {
    c.state == State::kLingering ? linger(c) : read(c);
  } else if ((what & HttpIo::kPeerClosed) != 0) {
    return close(c);  // a half-closed connection counts as closed
  }
  if ((what & HttpIo::kOutput) != 0 && c.state != State::kClosed) flush(c);
}

void HttpServer::read(HttpConnection& c) {
  static thread_local std::array<char, kPiece> piece;
  const ssize_t n = io_->receive(c.socket, piece.data(), piece.size());
  if (n == HttpIo::kLater) return;
  if (n <= 0) return close(c);
  parse(c, {piece.data(), static_cast<size_t>(n)});
}

// Discards input after a rejected request for a while. If the connection were closed with unread
// bytes, the kernel would reset it, and the client might not receive the response.
void HttpServer::linger(HttpConnection& c) {
  std::array<char, 4096> piece;
  const ssize_t n = io_->receive(c.socket, piece.data(), piece.size());
  if (n == HttpIo::kLater) return;
  c.lingered += n > 0 ? static_cast<size_t>(n) : 0;
  if (n <= 0 || c.lingered > kLingerBytes) close(c);
}

void HttpServer::parse(HttpConnection& c, absl::string_view bytes) {
  if (bytes.empty()) return;
  if (!c.reader.begun()) c.read_deadline = io_->now() + bounds_.head_time;
  bytes.remove_prefix(c.reader.consume(bytes));
  if (c.reader.state() == HttpReader::State::kHeadEnd) {
    if (!on_head(c, bytes)) return;
    bytes.remove_prefix(c.reader.consume(bytes));
  }
  const HttpReader::State state = c.reader.state();
  if (state == HttpReader::State::kRefused) return refuse(c, c.reader.refusal());
  if (!charge_input(c)) return refuse(c, 429);
  if (state == HttpReader::State::kWhole) {
    c.in.assign(bytes.data(), bytes.size());
    return dispatch(c);
  }
  if (c.reader.take_expectation()) {
    c.out += "HTTP/1.1 100 Continue\r\n\r\n";
    flush(c);
  }
}

// `rest` follows the head.
bool HttpServer::on_head(HttpConnection& c, absl::string_view rest) {
  const HttpMessage& head = c.reader.head();
  const bool has_body = c.reader.has_body();
  c.keep_alive = head.keep_alive;
  c.admission = {};
  if (c.too_many) {
    refuse(c, 429);
    return false;
  }
  if (handlers_.head) {
    c.peer.certificate_name = io_->certificate_name(c.socket);
    c.admission = handlers_.head(head, c.peer);
  }
  if (mutated(HttpMutation::kAcceptAll)) c.admission.refusal.reset();
  if (c.admission.refusal.has_value()) {
    const HttpReply refusal = *std::exchange(c.admission.refusal, std::nullopt);
    const bool keep_alive = c.keep_alive && !has_body && !drained_;
    if (mutated(HttpMutation::kContinueEarly) && has_body) c.out += "HTTP/1.1 100 Continue\r\n\r\n";
    if (keep_alive && !mutated(HttpMutation::kLosePipelined)) c.in.assign(rest.data(), rest.size());
    refuse(c, refusal, keep_alive);
    return false;
  }
  // The body is charged as it comes. One that cannot fit is refused before it does.
  const std::string& client = c.admission.client.empty() ? c.host : c.admission.client;
  auto charge = account_.charge(client, c.host,
                                static_cast<int64_t>(kExchangeBytes + c.reader.content_length()));
  if (!charge.ok()) {
    refuse(c, 429);
    return false;
  }
  c.request_charge = *std::move(charge);
  c.request_charge.resize(kExchangeBytes);
  c.reader.accept_head();
  c.read_deadline = io_->now() + bounds_.body_time;
  return true;
}

void HttpServer::dispatch(HttpConnection& c) {
  HttpMessage message = c.reader.take();
  c.state = HttpConnection::State::kResponding;
  c.read_deadline = kNever;
  c.in_chunks = message.in_chunks;
  c.ended = false;
  c.exchange = std::make_shared<HttpExchange>(this, &c, std::move(message));
  charge_output(c);
  const std::shared_ptr<HttpExchange> exchange = c.exchange;
  watch(c);  // may close the connection
  if (c.state == HttpConnection::State::kResponding) handlers_.request(exchange);
}

void HttpServer::refuse(HttpConnection& c, int status) {
  HttpReply reply = {status, {{"Content-Type", "application/json"}}, handlers_.error(status)};
  if (status == 429) reply.headers.emplace_back("Retry-After", "1");
  refuse(c, reply, /*keep_alive=*/false);
}

void HttpServer::refuse(HttpConnection& c, const HttpReply& reply, bool keep_alive) {
  const HttpMessage message = c.reader.take();
  c.request_charge.release();
  c.state = HttpConnection::State::kResponding;
  c.read_deadline = kNever;
  c.keep_alive = keep_alive;
  c.respond(reply, std::exchange(c.admission, {}).common, message.method != "HEAD");
  end(c);
  if (!keep_alive) c.in.clear();
  charge_output(c);
  flush(c);
}

// Of the connection itself.
size_t HttpServer::connection_bytes(const HttpConnection& c) const {
  return kConnectionBytes + io_->memory(c.socket);
}

// False: the input does not fit into the account.
bool HttpServer::charge_input(HttpConnection& c) {
  const size_t bytes = connection_bytes(c) + c.reader.head_bytes() + c.out.capacity();
  const size_t request = kExchangeBytes + c.reader.body_bytes();
  if (mutated(HttpMutation::kFreeBody)) return true;
  return c.charge.try_resize(static_cast<int64_t>(bytes)).ok() &&
         c.request_charge.try_resize(static_cast<int64_t>(request)).ok();
}

// Output is charged even above the limits: refusals, and answers whose calls were charged for them.
void HttpServer::charge_output(HttpConnection& c) {
  const auto bytes = static_cast<int64_t>(connection_bytes(c) + c.reader.head_bytes() +
                                          c.in.capacity() + c.out.capacity());
  if (mutated(HttpMutation::kFreeOutput)) return;
  if (bytes != c.charge.bytes()) c.charge.resize(bytes);
}

void HttpServer::put(HttpConnection& c, bool last) {
  c.notified = false;
  if (last) end(c);
  charge_output(c);
  flush(c);
}

void HttpServer::end(HttpConnection& c) {
  constexpr size_t kBytesPerSecond = 64 << 10;
  c.ended = true;
  c.end_deadline =
      io_->now() + bounds_.end_time +
      std::chrono::seconds((c.out.size() + c.constant.size() - c.sent) / kBytesPerSecond);
}

void HttpServer::flush(HttpConnection& c) {
  while (!c.unsent().empty()) {
    const ssize_t n = io_->send(c.socket, c.unsent());
    if (n == HttpIo::kBroken) return close(c);
    const TimePoint at = io_->now();
    if (c.write_deadline == kNever) {
      c.write_began = at;
      c.written = 0;
    }
    if (n > 0 || c.write_deadline == kNever) {
      c.written += std::max<ssize_t>(n, 0);
      const Duration fair = std::chrono::nanoseconds(static_cast<int64_t>(
          1e9 * static_cast<double>(c.written) / static_cast<double>(bounds_.send_rate)));
      c.write_deadline = bounds_.stall_time + std::min(at, c.write_began + fair);
    }
    if (n == HttpIo::kLater) return watch(c);
    c.sent += static_cast<size_t>(n);
  }
  c.out.clear();
  c.constant = {};
  if (c.out.capacity() > kPiece) c.out.shrink_to_fit();
  c.sent = 0;
  c.write_deadline = kNever;
  if (c.state != HttpConnection::State::kResponding)
    return watch(c);  // "100 Continue" has been sent
  const bool due = !std::exchange(c.notified, true);
  if (due) notifications_.push_back({c.exchange, true, true});
  if (due && mutated(HttpMutation::kWrittenTwice))
    notifications_.push_back({c.exchange, true, true});
  if (c.ended) return end_exchange(c);
  charge_output(c);
  watch(c);
}

void HttpServer::end_exchange(HttpConnection& c) {
  if (c.exchange != nullptr) std::exchange(c.exchange, nullptr)->connection_ = nullptr;
  if (c.out.capacity() > kKeptOutput) c.out.shrink_to_fit();
  charge_output(c);
  c.end_deadline = kNever;
  if (!c.keep_alive) {
    io_->end_output(c.socket);
    c.state = HttpConnection::State::kLingering;
    c.read_deadline = io_->now() + kLingerTime;
    return watch(c);
  }
  c.state = HttpConnection::State::kReading;
  c.read_deadline = io_->now() + bounds_.idle_time;
  if (!c.in.empty()) next_.push_back(&c);
  watch(c);
}

// Updates the events to poll for: input while reading, and always a disconnect. Closes the
// connection if that fails.
void HttpServer::watch(HttpConnection& c) {
  uint32_t events = c.state == HttpConnection::State::kLingering ? 0 : HttpIo::kPeerClosed;
  if (c.state != HttpConnection::State::kResponding) events |= HttpIo::kInput;
  if (!c.unsent().empty()) events |= HttpIo::kOutput;
  if (events == c.watched) return;
  c.watched = events;
  if (!io_->watch(c.socket, events, &c)) close(c);  // its events would be lost
}

void HttpServer::close(HttpConnection& c) {
  if (c.state == HttpConnection::State::kClosed) return;
  // An orderly end: the client need not suspect that a response was cut off.
  if (c.idle()) io_->end_output(c.socket);
  c.state = HttpConnection::State::kClosed;
  io_->close(c.socket);
  c.request_charge.release();
  if (c.exchange != nullptr) {
    c.exchange->connection_ = nullptr;
    if (mutated(HttpMutation::kLostDisconnect)) c.exchange->listener_ = nullptr;
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

bool HttpServer::is_late(const HttpConnection& c, TimePoint at) const {
  const Duration age = at - c.born;
  if (mutated(HttpMutation::kPatientWriter)) return c.read_deadline <= at;
  return std::min({c.read_deadline, c.write_deadline, c.end_deadline}) <= at ||
         (c.idle() && age > bounds_.age) || age > bounds_.age + bounds_.age_grace;
}

void HttpServer::sweep() {
  const TimePoint at = io_->now();
  if (at < swept_ + kSweep) return;
  swept_ = at;
  std::vector<HttpConnection*> late;
  for (const auto& [c, owner] : connections_) {
    if (is_late(*c, at)) late.push_back(c);
  }
  for (HttpConnection* const c : late) {
    const bool unfinished = c->state == HttpConnection::State::kReading && c->reader.begun();
    unfinished && c->out.empty() ? refuse(*c, 408) : close(*c);
  }
}

}  // namespace tandem
