// An HTTP/1.1 server for slow responses. One thread polls all connections, parses requests and
// writes responses; calls produce them on other threads. A connection serves one request after
// another.
//
// A slow client does not delay others. Requests are limited in bytes (each and in total) and in
// time. A client that stops reading is disconnected. A disconnect is reported to its call.
// Connections above the limit get 429 and are closed.
//
// Connections are accepted elsewhere (edge/acceptor.h, which also limits them per host). Plain
// HTTP: TLS needs a proxy.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "engine/base/clock.h"
#include "engine/base/mutex.h"
#include "server/edge/http_reader.h"
#include "server/edge/socket.h"

namespace tandem {

class HttpServer;
struct HttpConnection;
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A request and its response. Belongs to the server's thread, except `message` and `peer`, which
// the server does not touch after dispatch.
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

  HttpExchange(HttpServer* server, HttpConnection* connection, HttpMessage m, std::string p);
  ~HttpExchange();

  HttpMessage message;
  const std::string peer;  // in gRPC's notation: "ipv4:10.0.0.7:41234"

  // Null removes the listener. It is called by the server's loop, never from within these
  // functions.
  void listen(Listener* listener) { listener_ = listener; }

  // A streamed response: begin(), write() after each written(), end(). After a disconnect nothing
  // is sent, but every write is still reported.
  void begin(int status, const HttpHeaders& headers);
  void write(absl::string_view bytes);
  void end(absl::string_view last_bytes = "");
  // A complete response.
  void respond(int status, const HttpHeaders& headers, absl::string_view body);
  bool begun() const { return begun_; }

 private:
  friend class HttpServer;
  void put(absl::string_view bytes, bool last);

  HttpServer& server_;
  HttpConnection* connection_;  // null after the response or a disconnect
  Listener* listener_ = nullptr;
  bool begun_ = false;
};

class HttpServer {
 public:
  struct Bounds {
    size_t connections = 2048;  // beyond: 429
    size_t head_bytes = 8 << 10;
    size_t body_bytes = 4 << 20;
    // Of all requests; per host: host_share(). Beyond: 429.
    size_t held_bytes = 1 << 30;
    Duration head_time = std::chrono::seconds(10);
    Duration body_time = std::chrono::seconds(60);
    Duration idle_time = std::chrono::seconds(60);   // between requests
    Duration stall_time = std::chrono::seconds(60);  // a response that the client does not read
    Duration age =
        std::chrono::seconds(450);  // after which a connection accepts no further request
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
  };

  HttpServer(Bounds bounds, Handlers handlers);
  ~HttpServer();

  // Adds an accepted connection; does not block. Thread-safe.
  void add_connection(int fd);
  // Calls `work->work()` soon. REQUIRES: `work` is not queued, and lives until then, as does an
  // exchange. Thread-safe; does not block.
  void post(Work* work);

  // Closes idle connections now and the others after their response. Thread-safe.
  void drain();
  // Closes all connections and waits until all exchanges are released. Call once.
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

  void run();
  bool process_queues();  // false: the loop ends
  void admit(Fd fd);
  void on_events(HttpConnection& c, uint32_t events);
  void read(HttpConnection& c);
  void linger(HttpConnection& c);
  void parse(HttpConnection& c, absl::string_view bytes);
  void dispatch(HttpConnection& c);
  void refuse(HttpConnection& c, int status);
  void hold(HttpConnection& c, size_t bytes);
  bool exceeds_memory(const HttpConnection& c) const;
  void put(HttpConnection& c, bool last);
  void flush(HttpConnection& c);
  void end_exchange(HttpConnection& c);
  void close(HttpConnection& c);
  void watch(HttpConnection& c);
  void notify_listeners();
  void sweep();

  const Bounds bounds_;
  const Handlers handlers_;
  const Fd epoll_;
  WakeUp wake_;
  std::atomic<int64_t> exchanges_{0};

  // The server's thread:
  Connections connections_;
  std::vector<std::unique_ptr<HttpConnection>> dead_;
  std::vector<Notification> notifications_;
  std::vector<HttpConnection*> next_;  // with input that may hold another request
  size_t held_ = 0;
  absl::flat_hash_map<std::string, size_t> held_by_host_;  // by host
  bool drained_ = false;
  bool stopped_ = false;
  TimePoint swept_;

  Mutex mutex_;
  std::vector<Fd> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<Work*> posted_ ABSL_GUARDED_BY(mutex_);
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the other members
};

}  // namespace tandem
