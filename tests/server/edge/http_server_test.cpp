#include "server/edge/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "engine/base/clock.h"
#include "server/edge/acceptor.h"
#include "server/edge/pulse.h"
#include "tests/server/edge/simulated_network.h"
#include "tests/server/edge/sockets.h"

namespace tandem {
namespace {

using test::connect_to;
using test::put;
using test::read_all;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const HttpHeaders kText = {{"Content-Type", "text/plain"}};

// A call that answers on request, in the number of pieces that its path names.
class Call final : public HttpExchange::Listener, public HttpServer::Work {
 public:
  Call(std::shared_ptr<HttpExchange> exchange, int pieces)
      : exchange_(std::move(exchange)), left_(pieces) {
    exchange_->listen(this);
  }
  void work() override {
    exchange_->begin(200, kText);
    next();
  }
  void written(bool ok) override {
    if (ok && left_ >= 0) return next();
    if (!ok) gone.set_value();
    exchange_->listen(nullptr);
    exchange_.reset();
    if (ok) whole.set_value();
  }
  void closed() override {
    if (exchange_ == nullptr) return;
    exchange_->listen(nullptr);
    exchange_.reset();
    gone.set_value();
  }
  std::promise<void> whole, gone;

 private:
  void next() {
    if (left_-- > 0) return exchange_->write(left_ > 1000 ? std::string(64 << 10, 'x') : "piece,");
    exchange_->end("end");
  }
  std::shared_ptr<HttpExchange> exchange_;
  int left_;
};

// A server on a port of its own. "/N": an answer in N pieces and an end; "/echo": the body;
// "/wait": whenever `call` is posted.
struct Site {
  std::unique_ptr<Call> call;
  std::vector<std::unique_ptr<Call>> others;
  std::promise<void> came;
  MemoryAccount account;
  std::unique_ptr<HttpServer> server;
  std::unique_ptr<Acceptor> acceptor;

  explicit Site(HttpServer::Bounds bounds = {}, int64_t memory = 1 << 30) : account(memory) {
    server = std::make_unique<HttpServer>(
        bounds,
        HttpServer::Handlers{[this](const std::shared_ptr<HttpExchange>& e) { on_request(e); },
                             [](int status) { return "error " + std::to_string(status); }, nullptr},
        &account);
    server->start();
    acceptor = std::make_unique<Acceptor>(*listen_on("test", "127.0.0.1:0"),
                                          Acceptor::Bounds{1000, 1000}, std::chrono::seconds(20));
    acceptor->start([this](int, int fd) { server->add_connection(fd); });
  }
  void on_request(const std::shared_ptr<HttpExchange>& e) {
    if (e->message.path == "/echo") return e->respond(200, kText, e->message.body);
    if (e->message.path == "/wait") {
      call = std::make_unique<Call>(e, 2);
      return came.set_value();
    }
    others.push_back(std::make_unique<Call>(e, std::stoi(e->message.path.substr(1))));
    others.back()->work();
  }
  std::string ask(const std::string& request) const {
    const Fd fd = connect_to(acceptor->address());
    EXPECT_TRUE(put(fd, request));
    return read_all(fd);
  }
};

std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n";
}
const std::string kClose = "Connection: close\r\n";

TEST(HttpServer, AnswersWholeAndInChunks) {
  const Site site;
  EXPECT_EQ(site.ask(get("/2", kClose)),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n6\r\npiece,\r\n6\r\npiece,\r\n3\r\nend\r\n0\r\n\r\n");
  EXPECT_EQ(site.ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n" + kClose + "\r\nhi"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
            "Connection: close\r\n\r\nhi");
  EXPECT_EQ(site.ask("GET /1 HTTP/1.0\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\npiece,end");
}

TEST(HttpServer, ServesRequestsOfOneConnectionInOrder) {
  const Site site;
  const std::string all = site.ask(get("/1") + get("/0") + get("/2", kClose));
  EXPECT_THAT(all, HasSubstr("piece,\r\n3\r\nend\r\n0\r\n\r\nHTTP/1.1 200 OK"));
  EXPECT_THAT(all, EndsWith("6\r\npiece,\r\n6\r\npiece,\r\n3\r\nend\r\n0\r\n\r\n"));
}

// Answers a request with its path.
struct Answer final : HttpServer::Work {
  void work() override { std::exchange(exchange, nullptr)->respond(200, {}, path); }
  std::shared_ptr<HttpExchange> exchange;
  std::string path;
};

TEST(HttpServer, ReadsNothingBeforeTheInputThatItHolds) {
  MemoryAccount account(1 << 20);
  VirtualClock clock;
  auto made = std::make_unique<test::SimulatedNetwork>(&clock);
  test::SimulatedNetwork& network = *made;
  Answer last;
  HttpServer server({},
                    {[&](std::shared_ptr<HttpExchange> e) {
                       last.path = e->message.path;
                       last.exchange = std::move(e);
                     },
                     [](int) { return std::string("error"); }, nullptr},
                    &account, std::move(made));
  const int client = network.connect("10.0.0.1");
  server.add_connection(client);
  network.send_to_server(client, get("/1") + get("/2"));
  server.step();
  server.step();
  network.send_to_server(client, get("/3"));
  for (const char* const path : {"/1", "/2", "/3"}) {
    ASSERT_NE(last.exchange, nullptr);
    EXPECT_EQ(last.path, path);
    server.post(&last);
    server.step();
    server.step();
  }
  EXPECT_EQ(last.exchange, nullptr);
}

TEST(HttpServer, SendsContinueToClientsThatWaitForIt) {
  const Site site;
  const Fd fd = connect_to(site.acceptor->address());
  put(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n" +
              kClose + "\r\n");
  char first[25];
  ASSERT_TRUE(test::readable(fd));
  ASSERT_EQ(recv(fd.get(), first, sizeof(first), MSG_WAITALL), 25);
  EXPECT_EQ(std::string(first, 25), "HTTP/1.1 100 Continue\r\n\r\n");
  put(fd, "hi");
  EXPECT_THAT(read_all(fd), EndsWith("\r\n\r\nhi"));
}

TEST(HttpServer, NotifiesACallThatItsClientIsGone) {
  Site site;
  {
    const Fd fd = connect_to(site.acceptor->address());
    put(fd, get("/wait"));
    site.came.get_future().wait();
  }
  site.call->gone.get_future().wait();
  site.server->stop();
  EXPECT_EQ(site.server->exchanges(), 0);
}

TEST(HttpServer, ClosesConnectionsThatReadNothing) {
  HttpServer::Bounds bounds;
  bounds.stall_time = std::chrono::milliseconds(1);
  Site site(bounds);
  const Fd fd = connect_to(site.acceptor->address());
  put(fd, get("/100000000"));
  // Its call writes until the sockets' buffers are full. The client does not read.
  while (site.server->exchanges() == 0) std::this_thread::yield();
  while (site.server->exchanges() > 0) std::this_thread::yield();
  site.server->stop();
}

TEST(HttpServer, ClosesConnectionsThatSendNothing) {
  HttpServer::Bounds bounds;
  bounds.head_time = std::chrono::milliseconds(1);
  bounds.body_time = std::chrono::milliseconds(1);
  const Site site(bounds);
  EXPECT_EQ(read_all(connect_to(site.acceptor->address())), "");
  EXPECT_THAT(site.ask("GET / HTTP/1.1\r\nA: "), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(site.ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nx"),
              EndsWith("\r\n\r\nerror 408"));
}

TEST(HttpServer, RefusesWhatIsTooMuch) {
  HttpServer::Bounds bounds;
  bounds.body_bytes = 10'000;
  const Site site(bounds, /*memory=*/16 << 10);  // a host may hold 12 KiB, and a client 8 KiB
  EXPECT_THAT(site.ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10001\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
  const std::string many =
      site.ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9000\r\n\r\n");
  EXPECT_THAT(many, StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(many, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_THAT(site.ask("nonsense\r\n"), StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, AnswersConnectionsBeyondTheBound) {
  HttpServer::Bounds bounds;
  bounds.connections = 1;
  Site site(bounds);
  const Fd first = connect_to(site.acceptor->address());
  put(first, get("/wait"));
  site.came.get_future().wait();
  EXPECT_THAT(site.ask(get("/1")), StartsWith("HTTP/1.1 429 Too Many Requests\r\n"));
  site.server->post(site.call.get());
  site.call->whole.get_future().wait();
}

// What a monitor sees of a thread that hangs.
TEST(HttpServer, ItsHeartbeatStopsWhileItHangs) {
  struct Hang final : HttpServer::Work {
    void work() override {
      begun.set_value();
      go.get_future().wait();
    }
    std::promise<void> begun, go;
  } hang;
  struct Beat final : HttpServer::Work {
    void work() override {
      pulse.beat();
      beaten.set_value();
    }
    Pulse pulse;
    std::promise<void> beaten;
  } beat;
  const Site site;
  const auto ask = [&] { beat.pulse.ask([&] { site.server->post(&beat); }); };
  ask();
  beat.beaten.get_future().wait();
  EXPECT_EQ(beat.pulse.overdue(), Duration::zero());

  beat.beaten = {};
  site.server->post(&hang);
  hang.begun.get_future().wait();
  ask();
  ask();  // it waits already: posted once
  while (beat.pulse.overdue() == Duration::zero()) std::this_thread::yield();
  hang.go.set_value();
  beat.beaten.get_future().wait();
  EXPECT_EQ(beat.pulse.overdue(), Duration::zero());
}

TEST(HttpServer, DrainEndsConnectionsWithTheirAnswers) {
  Site site;
  const Fd idle = connect_to(site.acceptor->address());
  const Fd busy = connect_to(site.acceptor->address());
  put(busy, get("/wait"));
  site.came.get_future().wait();
  site.acceptor->stop();
  site.server->drain();
  EXPECT_EQ(read_all(idle), "");
  site.server->post(site.call.get());
  const std::string answer = read_all(busy);
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("3\r\nend\r\n0\r\n\r\n"));
}

}  // namespace
}  // namespace tandem
