// An HTTP/1.1 server for answers that take their time: one thread polls all connections, reads
// their requests and writes what the calls say, which never blocks it. A connection serves one
// request after the other.
//
// Whoever is slow, silent or fat holds up nobody: requests are bounded in bytes, each and all
// together, and in time; whoever reads nothing for too long is cut off. A connection that closes is
// told to its call. Connections beyond the bound are answered 429, and closed.
//
// Connections come accepted (edge/acceptor.h bounds them once more, by host). Plain HTTP: a proxy
// in front has TLS.
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

// A request and the way back to who sent it. All of it belongs to the server's thread but `message`
// and `peer`, which nobody else touches.
class HttpExchange : public std::enable_shared_from_this<HttpExchange> {
 public:
  class Listener {
   public:
    // What write() or end() gave is on its way; false: the client is gone.
    virtual void written(bool ok) = 0;
    // The client is gone before the answer was whole. After a written(false), where one was due.
    virtual void closed() = 0;

   protected:
    ~Listener() = default;
  };

  HttpExchange(HttpServer* server, HttpConnection* connection, HttpMessage m, std::string p);
  ~HttpExchange();

  HttpMessage message;
  const std::string peer;  // as gRPC names it: "ipv4:10.0.0.7:41234"

  // Who is told; null: nobody. Calls come from the server's loop, never from within these.
  void listen(Listener* listener) { listener_ = listener; }

  // An answer in pieces: begin(), each write() once the one before is written, end(). Nothing of it
  // reaches a client that is gone, but each write is told.
  void begin(int status, const HttpHeaders& headers);
  void write(absl::string_view bytes);
  void end(absl::string_view last_bytes = "");
  // A whole answer.
  void answer(int status, const HttpHeaders& headers, absl::string_view body);
  bool begun() const { return begun_; }

 private:
  friend class HttpServer;
  void put(absl::string_view bytes, bool last);

  HttpServer& server_;
  HttpConnection* connection_;  // null: closed, or answered
  Listener* listener_ = nullptr;
  bool begun_ = false;
};

class HttpServer {
 public:
  struct Bounds {
    size_t connections = 2048;  // beyond: 429
    size_t head_bytes = 8 << 10;
    size_t body_bytes = 4 << 20;
    // Of requests, all together; of one host's, host_share(). Beyond: 429.
    size_t held_bytes = 1 << 30;
    Duration head_time = std::chrono::seconds(10);
    Duration body_time = std::chrono::seconds(60);
    Duration idle_time = std::chrono::seconds(60);   // between two requests
    Duration stall_time = std::chrono::seconds(60);  // an answer of which nothing is read
    Duration age = std::chrono::seconds(450);        // then a connection serves no other request
  };
  // Something to be done on the server's thread.
  class Work {
   public:
    virtual void work() = 0;

   protected:
    ~Work() = default;
  };
  struct Handlers {
    // A whole request. On the server's thread, so it must be quick.
    std::function<void(std::shared_ptr<HttpExchange>)> request;
    // The body (JSON) of an error that the server finds by itself.
    std::function<std::string(int status)> error;
  };

  HttpServer(Bounds bounds, Handlers handlers);
  ~HttpServer();  // stops

  // A connection that was accepted; does not block. Thread-safe.
  void take(int fd);
  // Calls `work->work()` soon. REQUIRES: it is not waiting already, and lives until then, as does
  // an exchange. Thread-safe; never blocks.
  void post(Work* work);

  // Connections without a request are closed, the others after their answer. Thread-safe.
  void drain();
  // Closes all connections, and waits for the exchanges to be let go of. Once.
  void stop();

  // Thread-safe:
  int64_t exchanges() const { return exchanges_.load(); }  // not let go of

 private:
  friend class HttpExchange;
  using Connections = absl::flat_hash_map<HttpConnection*, std::unique_ptr<HttpConnection>>;
  struct Notification {  // for a listener
    std::shared_ptr<HttpExchange> exchange;
    bool written, ok;
  };

  void run();
  bool take_what_came();  // false: it is over
  void admit(Fd fd);
  void on_events(HttpConnection& c, uint32_t events);
  void read(HttpConnection& c);
  void linger(HttpConnection& c);
  void use(HttpConnection& c, absl::string_view bytes);
  void dispatch(HttpConnection& c);
  void refuse(HttpConnection& c, int status);
  void hold(HttpConnection& c, size_t bytes);
  bool holds_too_much(const HttpConnection& c) const;
  void put(HttpConnection& c, bool last);
  void flush(HttpConnection& c);
  void answered(HttpConnection& c);
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
  std::vector<HttpConnection*> next_;  // may have a further request already
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

  std::thread thread_;  // last: it uses the rest
};

}  // namespace tandem
