// What HttpServer allows a client, on virtual time: memory, time, and the order of decisions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/edge/http_server.h"
#include "tests/server/edge/simulated_network.h"

namespace tandem {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr int64_t kMebibyte = 1 << 20;

// A server whose requests wait in `waiting` until the test responds. The token of a request is its
// client's name; without one it is refused.
struct HttpBench {
  VirtualClock clock;
  MemoryAccount account;
  test::SimulatedNetwork* net;
  std::vector<std::shared_ptr<HttpExchange>> waiting;
  std::vector<std::string> heads;  // that were decided
  std::unique_ptr<HttpServer> server;

  explicit HttpBench(HttpServer::Bounds bounds = {}, int64_t memory = 64 * kMebibyte)
      : account(memory) {
    auto network = std::make_unique<test::SimulatedNetwork>(&clock);
    net = network.get();
    server = std::make_unique<HttpServer>(
        bounds,
        HttpServer::Handlers{
            [this](std::shared_ptr<HttpExchange> e) { waiting.push_back(std::move(e)); },
            [](int status) { return absl::StrCat("error ", status); },
            [this](const HttpMessage& head, const HttpPeer&) { return decide(head); }},
        &account, std::move(network));
  }
  ~HttpBench() { waiting.clear(); }

  HttpAdmission decide(const HttpMessage& head) {
    heads.push_back(head.method + " " + head.path);
    HttpAdmission out;
    out.client = head.header("authorization");
    out.common = {{"X-Common", "yes"}};
    if (out.client.empty()) out.refusal = {401, {{"X-Why", "no token"}}, "refused"};
    return out;
  }
  int connect(const std::string& host = "10.0.0.1") {
    const int socket = net->connect(host);
    server->add_connection(socket);
    settle();
    return socket;
  }
  void send(int socket, const std::string& bytes) {
    net->send_to_server(socket, bytes);
    settle();
  }
  void settle() {
    for (int i = 0; i < 100; ++i) server->step();
  }
  void pass(Duration time) {
    clock.advance(time);
    settle();
  }
};

std::string post_head(size_t length, const std::string& headers = "Authorization: ann\r\n") {
  return absl::StrCat("POST /x HTTP/1.1\r\nHost: h\r\n", headers, "Content-Length: ", length,
                      "\r\n\r\n");
}

TEST(HttpBounds, TheBodyOfARefusedRequestIsNotRead) {
  HttpBench b;
  const int socket = b.connect();
  b.send(socket, post_head(kMebibyte, "Expect: 100-continue\r\n"));
  const std::string answer = b.net->read_from_server(socket);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 Unauthorized\r\nX-Common: yes\r\nX-Why: no token"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nrefused"));
  const int64_t before = b.account.used();
  b.send(socket, std::string(kMebibyte / 2, 'x'));  // discarded
  EXPECT_LE(b.account.used(), before);
  EXPECT_THAT(b.waiting, IsEmpty());
  b.pass(std::chrono::seconds(3));
  EXPECT_TRUE(b.net->closed(socket));
}

TEST(HttpBounds, TheHeadIsDecidedBeforeContinueAndBeforeTheBody) {
  HttpBench b;
  const int socket = b.connect();
  const std::string head = post_head(2, "Authorization: ann\r\nExpect: 100-continue\r\n");
  b.send(socket, head.substr(0, head.size() - 1));
  EXPECT_THAT(b.heads, IsEmpty());
  EXPECT_EQ(b.net->read_from_server(socket), "");
  b.send(socket, "\n");
  EXPECT_EQ(b.heads.size(), 1U);
  EXPECT_EQ(b.net->read_from_server(socket), "HTTP/1.1 100 Continue\r\n\r\n");
  b.send(socket, "hi");
  ASSERT_EQ(b.waiting.size(), 1U);
  EXPECT_EQ(b.waiting[0]->message.body, "hi");
  EXPECT_EQ(b.waiting[0]->client, "ann");
  b.waiting[0]->respond(200, {}, "done");
  EXPECT_EQ(b.net->read_from_server(socket),
            "HTTP/1.1 200 OK\r\nX-Common: yes\r\nContent-Length: 4\r\n\r\ndone");
}

TEST(HttpBounds, ARefusalWithoutABodyKeepsTheConnection) {
  HttpBench b;
  const int socket = b.connect();
  const std::string get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
  b.send(socket, get + get + "HEAD /b HTTP/1.1\r\nHost: h\r\n\r\n" + post_head(1) + "x");
  EXPECT_THAT(b.heads, testing::ElementsAre("GET /a", "GET /a", "HEAD /b", "POST /x"));
  const std::string answers = b.net->read_from_server(socket);
  EXPECT_THAT(answers, EndsWith("Content-Length: 7\r\n\r\n")) << "HEAD has no body";
  EXPECT_EQ(b.waiting.size(), 1U);
}

TEST(HttpBounds, ABodyIsChargedUntilItsExchangeIsReleasedAlsoWithoutItsClient) {
  HttpBench b;
  const int socket = b.connect();
  EXPECT_EQ(b.account.charges(), 1);
  b.send(socket, post_head(2 * kMebibyte) + std::string(kMebibyte, 'x'));
  EXPECT_GE(b.account.used(), kMebibyte);
  b.send(socket, std::string(kMebibyte, 'x'));
  ASSERT_EQ(b.waiting.size(), 1U);
  EXPECT_GE(b.account.used(), 2 * kMebibyte);
  b.net->reset_client(socket);
  b.settle();
  EXPECT_TRUE(b.net->closed(socket));
  EXPECT_GE(b.account.used(), 2 * kMebibyte) << "the call has it";
  b.waiting[0]->drop_body();
  EXPECT_LT(b.account.used(), 64 << 10);
  b.waiting.clear();
  EXPECT_EQ(b.account.used(), 0);
  EXPECT_EQ(b.account.charges(), 0);
}

TEST(HttpBounds, BodiesBeyondTheMemoryGet429WhileOthersAreServed) {
  HttpServer::Bounds bounds;
  bounds.body_bytes = 4 * kMebibyte;
  HttpBench b(bounds, 16 * kMebibyte);
  std::vector<int> held;
  for (int i = 0; i < 2; ++i) {  // a client may hold half
    held.push_back(b.connect());
    b.send(held.back(), post_head(3 * kMebibyte + kMebibyte / 2) + std::string(3 * kMebibyte, 'x'));
  }
  const int more = b.connect();
  b.send(more, post_head(2 * kMebibyte));
  const std::string answer = b.net->read_from_server(more);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(answer, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_THAT(answer, EndsWith("error 429"));
  const int other = b.connect("10.0.0.2");
  b.send(other,
         post_head(2 * kMebibyte, "Authorization: bob\r\n") + std::string(2 * kMebibyte, 'x'));
  EXPECT_EQ(b.waiting.size(), 1U);
  for (const int socket : held) b.net->reset_client(socket);
  b.settle();
  const int again = b.connect();
  b.send(again, post_head(2 * kMebibyte) + std::string(2 * kMebibyte, 'x'));
  EXPECT_EQ(b.waiting.size(), 2U);
}

// A body whose length is not announced is refused when it exceeds the memory.
TEST(HttpBounds, ChunksBeyondTheMemoryGet429) {
  HttpServer::Bounds bounds;
  bounds.body_bytes = 16 * kMebibyte;
  HttpBench b(bounds, 4 * kMebibyte);
  const int socket = b.connect();
  b.send(socket,
         "POST /x HTTP/1.1\r\nHost: h\r\nAuthorization: ann\r\nTransfer-Encoding: chunked"
         "\r\n\r\n300000\r\n" +
             std::string(3 * kMebibyte, 'x'));
  EXPECT_THAT(b.net->read_from_server(socket), StartsWith("HTTP/1.1 429 "));
  EXPECT_LT(b.account.used(), 64 << 10);
  EXPECT_LE(b.account.peak(), 4 * kMebibyte);
}

TEST(HttpBounds, UnsentAnswersAreCharged) {
  HttpBench b;
  const int socket = b.connect();
  b.send(socket, post_head(0));
  b.waiting.at(0)->respond(200, {}, std::string(3 * kMebibyte, 'x'));
  b.waiting.clear();
  EXPECT_GE(b.account.used(), 3 * kMebibyte);
  for (int i = 0; i < 60; ++i) {
    b.net->read_from_server(socket);
    b.settle();
  }
  EXPECT_LT(b.account.used(), 16 << 10);
  b.net->close_client(socket);
  b.settle();
  EXPECT_EQ(b.account.charges(), 0);
}

struct LostClient final : HttpExchange::Listener {
  void written(bool ok) override { failed = failed || !ok; }
  void closed() override { left = true; }
  bool failed = false, left = false;
};

TEST(HttpBounds, AnAnswerThatIsNotReadEndsTheConnection) {
  HttpServer::Bounds bounds;
  bounds.send_rate = 1;
  HttpBench b(bounds);
  LostClient gone;
  const int socket = b.connect();
  b.send(socket, post_head(0));
  const auto exchange = b.waiting.at(0);
  exchange->listen(&gone);
  exchange->respond(200, {}, std::string(kMebibyte, 'x'));
  b.pass(std::chrono::seconds(59));
  EXPECT_FALSE(b.net->closed(socket));
  b.net->read_from_server(socket, 1);  // progress
  b.settle();
  b.pass(std::chrono::seconds(59));
  EXPECT_FALSE(b.net->closed(socket));
  b.pass(std::chrono::seconds(2));
  EXPECT_TRUE(b.net->closed(socket));
  EXPECT_TRUE(gone.failed && gone.left);
  exchange->listen(nullptr);
}

// A byte now and then is progress, but it is too slow.
TEST(HttpBounds, AReaderBelowTheRateIsDisconnectedAndOneAboveItIsNot) {
  HttpServer::Bounds bounds;
  bounds.send_rate = 1000;
  for (const size_t per_second : {500, 2000}) {
    HttpBench b(bounds);
    const int socket = b.connect();
    b.net->set_capacity(socket, 4000);
    b.send(socket, post_head(0));
    b.waiting.at(0)->respond(200, {}, std::string(200'000, 'x'));
    b.waiting.clear();
    int seconds = 0;
    size_t read = 0;
    while (!b.net->closed(socket) && read < 200'000 && seconds < 1000) {
      read += b.net->read_from_server(socket, per_second).size();
      b.pass(std::chrono::seconds(1));
      ++seconds;
    }
    if (per_second > 1000) {
      EXPECT_GE(read, 200'000U);
    } else {
      EXPECT_TRUE(b.net->closed(socket));
      EXPECT_NEAR(seconds, 128, 4);  // 60 s, and the time that 4000 + 500 t bytes take at the rate
    }
  }
}

TEST(HttpBounds, ACompleteAnswerMustBeReadInItsTime) {
  HttpServer::Bounds bounds;
  bounds.end_time = std::chrono::seconds(2);
  HttpBench b(bounds);
  const int socket = b.connect();
  b.send(socket, post_head(0));
  b.waiting.at(0)->respond(200, {}, std::string(kMebibyte, 'x'));  // has 16 s more
  for (int i = 0; i < 17; ++i) {
    b.net->read_from_server(socket, 1000);
    b.pass(std::chrono::seconds(1));
  }
  EXPECT_FALSE(b.net->closed(socket));
  b.pass(std::chrono::milliseconds(1500));
  EXPECT_TRUE(b.net->closed(socket));
}

TEST(HttpBounds, AConnectionEndsWithItsAge) {
  HttpServer::Bounds bounds;
  bounds.age = std::chrono::seconds(100);
  bounds.age_grace = std::chrono::seconds(50);
  bounds.idle_time = bounds.body_time = std::chrono::hours(1);
  HttpBench b(bounds);
  const int idle = b.connect();
  const int busy = b.connect();
  const int endless = b.connect();
  for (const int socket : {idle, busy, endless}) b.send(socket, post_head(0));
  b.waiting.at(0)->respond(200, {}, "");
  b.pass(std::chrono::seconds(99));
  EXPECT_FALSE(b.net->closed(idle));
  b.pass(std::chrono::seconds(2));
  EXPECT_TRUE(b.net->closed(idle));
  EXPECT_FALSE(b.net->closed(busy));
  b.waiting.at(1)->respond(200, {}, "");
  EXPECT_THAT(b.net->read_from_server(busy), HasSubstr("Connection: close\r\n"));
  b.pass(std::chrono::seconds(50));
  EXPECT_TRUE(b.net->closed(endless));
}

TEST(HttpBounds, SilentConnectionsEnd) {
  HttpBench b;
  const int empty = b.connect();
  const int head = b.connect();
  const int body = b.connect();
  b.send(head, "POST /x HTTP/1.1\r\nA: ");
  b.send(body, post_head(2) + "x");
  b.pass(std::chrono::seconds(11));
  EXPECT_TRUE(b.net->closed(empty));
  EXPECT_THAT(b.net->read_from_server(head), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(b.net->read_from_server(body), "");
  b.pass(std::chrono::seconds(50));
  EXPECT_THAT(b.net->read_from_server(body), StartsWith("HTTP/1.1 408 "));
}

// The kernel has no memory for the change (epoll_ctl: ENOMEM). The connection would hang.
TEST(HttpBounds, AConnectionThatCannotBeWatchedIsClosed) {
  HttpBench b;
  const int added = b.net->connect("10.0.0.1");
  b.net->fail_watches(added);
  b.server->add_connection(added);
  b.settle();
  EXPECT_TRUE(b.net->closed(added));

  const int requested = b.connect();
  b.net->fail_watches(requested);
  b.send(requested, post_head(1) + "b");
  EXPECT_TRUE(b.net->closed(requested));
  EXPECT_THAT(b.waiting, IsEmpty());

  const int answered = b.connect();
  b.send(answered, post_head(1) + "b");
  ASSERT_EQ(b.waiting.size(), 1U);
  b.net->fail_watches(answered);
  b.waiting[0]->respond(200, {}, "answer");
  b.settle();
  EXPECT_TRUE(b.net->closed(answered));
  b.waiting.clear();
  EXPECT_EQ(b.account.used(), 0);
}

}  // namespace
}  // namespace tandem
