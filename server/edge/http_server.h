// An HTTP/1.1 server for slow responses. One thread polls all connections, parses requests and
// writes responses; calls produce them on other threads. A connection serves one request after
// another.
//
// A slow client does not delay others. Every request is decided on its head: the body of a refused
// request is not read. Requests are limited in bytes and in time, and responses in time: a client
// that reads nothing, or too slowly, is disconnected. A disconnect is reported to its call.
// Connections above the limit get 429 and are closed.
//
// The memory of connections, requests and unsent responses is charged to an account, until a
// request's exchange is released: also after its client has left. Above the account's limits,
// requests get 429.
//
// Connections are accepted elsewhere (edge/acceptor.h, which also limits them per host). TLS is a
// matter of HttpIo (edge/tls_io.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/base/memory_account.h"
#include "engine/base/mutex.h"
#include "server/edge/http_io.h"
#include "server/edge/http_reader.h"
#include "server/edge/peer.h"

namespace tandem {

class HttpServer;
struct HttpConnection;
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

// The decision on a request's head.
struct HttpAdmission {
  std::string client;  // charged with the request; empty: the host
  HttpHeaders common;  // headers of every response to the request
  // The request ends with it. A body that follows is not read, and the connection is closed.
  std::optional<HttpReply> refusal;
};

// A request and its response. Belongs to the server's thread, except `message`, `client`, `peer`
// and `charge`, which the server does not touch after dispatch.
class HttpExchange : public std::enable_shared_from_this<HttpExchange> {
 public:
  class Listener {
   public:
    // The bytes of write() or end() have been sent; false: the client has disconnected.
    virtual void written(bool ok) = 0;
    // The client disconnected before the response was complete. Follows written(false), if due.
    virtual void closed() = 0;

   protected:
    ~Listener() = default;
  };

  HttpExchange(HttpServer* server, HttpConnection* connection, HttpMessage m);
  ~HttpExchange();

  HttpMessage message;
  const std::string client;  // of the admission
  const HttpPeer peer;
  // The memory of the request, at first of `message`. The call sets it to what it holds; one thread
  // at a time.
  MemoryAccount::Charge charge;
  // Frees the body and its charge, except for a constant.
  void drop_body();

  // Null removes the listener. It is called by the server's loop, never from within these
  // functions.
  void listen(Listener* listener) { listener_ = listener; }

  // A streamed response: begin(), write() after each written(), end(). After a disconnect nothing
  // is sent, but every write is still reported.
  void begin(int status, const HttpHeaders& headers);
  void write(absl::string_view bytes);
  void end(absl::string_view last_bytes = "");
  // A complete response. Without its body to HEAD, and with status 304.
  void respond(int status, const HttpHeaders& headers, absl::string_view body);
  // The same with a body that outlives the server, such as a constant. It is sent without a copy.
  void respond_constant(int status, const HttpHeaders& headers, absl::string_view body);
  bool begun() const { return begun_; }

 private:
  friend class HttpServer;
  void put(absl::string_view bytes, bool last);
  void begin_sized(int status, const HttpHeaders& headers, size_t size);
  bool bodyless(int status) const { return status == 304 || message.method == "HEAD"; }

  HttpServer& server_;
  HttpConnection* connection_;  // null after the response or a disconnect
  Listener* listener_ = nullptr;
  const HttpHeaders common_;  // of the admission
  bool begun_ = false;
};

class HttpServer {
 public:
  struct Bounds {
    size_t connections = 2048;  // beyond: 429
    size_t head_bytes = 8 << 10;
    size_t body_bytes = 4 << 20;
    Duration head_time = std::chrono::seconds(10);
    Duration body_time = std::chrono::seconds(60);
    Duration idle_time = std::chrono::seconds(60);  // between requests
    // A response that waits to be read: without progress, and in addition to the time that its
    // bytes take at the rate (bytes per second).
    Duration stall_time = std::chrono::seconds(60);
    int64_t send_rate = 8 << 10;
    // For the rest of a response that is complete, and a second more for each 64 KiB.
    Duration end_time = std::chrono::seconds(600);
    // After `age`, a connection accepts no further request; after `age_grace` more, it is closed.
    Duration age = std::chrono::seconds(450);
    Duration age_grace = std::chrono::hours(1);
  };
  // A task for the server's thread.
  class Work {
   public:
    virtual void work() = 0;

   protected:
    ~Work() = default;
  };
  struct Handlers {
    // A complete request. Called on the server's thread; must not block.
    std::function<void(std::shared_ptr<HttpExchange>)> request;
    // The body (JSON) of an error that the HTTP server detects.
    std::function<std::string(int status)> error;
    // Decides on a request's head, before its body is read and before "100 Continue". Called on the
    // server's thread; must not block. Null: every request is accepted.
    std::function<HttpAdmission(const HttpMessage& head, const HttpPeer& peer)> head;
  };

  // `account` outlives the server and its exchanges.
  HttpServer(Bounds bounds, Handlers handlers, MemoryAccount* account,
             std::unique_ptr<HttpIo> io = system_http_io());
  ~HttpServer();

  // Serves on a thread of its own.
  void start();
  // One round of the server's loop. For tests, instead of start(). False: the server has stopped.
  bool step();

  // Adds an accepted connection; does not block. Thread-safe.
  void add_connection(int fd);
  // Calls `work->work()` soon. REQUIRES: `work` is not queued, and lives until then, as does an
  // exchange. Thread-safe; does not block.
  void post(Work* work);

  // Closes idle connections now and the others after their response. Thread-safe.
  void drain();
  // Closes all connections and waits until all exchanges are released. Does nothing the second
  // time.
  void stop();

  // Thread-safe:
  int64_t exchanges() const { return exchanges_.load(); }  // not yet released

 private:
  friend class HttpExchange;
  using Connections = absl::flat_hash_map<HttpConnection*, std::unique_ptr<HttpConnection>>;
  struct Notification {  // for a listener
    std::shared_ptr<HttpExchange> exchange;
    bool written, ok;
  };

  bool process_queues();  // false: the loop ends
  void admit(int socket);
  void on_event(HttpConnection& c, uint32_t what);
  void read(HttpConnection& c);
  void linger(HttpConnection& c);
  void parse(HttpConnection& c, absl::string_view bytes);
  bool on_head(HttpConnection& c, absl::string_view rest);  // false: refused
  void dispatch(HttpConnection& c);
  void refuse(HttpConnection& c, int status);
  void refuse(HttpConnection& c, const HttpReply& reply, bool keep_alive);
  size_t connection_bytes(const HttpConnection& c) const;
  bool charge_input(HttpConnection& c);
  void charge_output(HttpConnection& c);
  void put(HttpConnection& c, bool last);
  void end(HttpConnection& c);
  void flush(HttpConnection& c);
  void end_exchange(HttpConnection& c);
  void close(HttpConnection& c);
  void watch(HttpConnection& c);
  void notify_listeners();
  void sweep();
  bool is_late(const HttpConnection& c, TimePoint at) const;

  const Bounds bounds_;
  const Handlers handlers_;
  MemoryAccount& account_;
  const std::unique_ptr<HttpIo> io_;
  std::atomic<int64_t> exchanges_{0};

  // The server's thread:
  Connections connections_;
  std::vector<std::unique_ptr<HttpConnection>> dead_;
  std::vector<Notification> notifications_;
  std::vector<HttpConnection*> next_;  // with input that may hold another request
  std::vector<HttpIo::Event> events_;
  bool drained_ = false;
  bool stopped_ = false;  // connections are closed; exchanges may remain
  TimePoint swept_;

  Mutex mutex_;
  std::vector<int> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<Work*> posted_ ABSL_GUARDED_BY(mutex_);
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the other members
};

}  // namespace tandem
