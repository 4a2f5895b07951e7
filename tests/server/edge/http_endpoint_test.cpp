#include "server/edge/http_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <future>

#include "tests/server/edge/sockets.h"

namespace tandem {
namespace {

using test::connect_to;
using test::put;
using test::read_all;
using test::unconnected;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kProbe[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

std::unique_ptr<HttpEndpoint> endpoint(std::function<std::string()> metrics = [] {
  return std::string("m 1\n");
}) {
  auto started = HttpEndpoint::start(
      "127.0.0.1:0",
      {std::move(metrics), [] { return HttpResponse{503, "not yet\n"}; },
       [] { return HttpResponse{200, "ok\n"}; }, [] { return HttpResponse{200, "g 1\n"}; }});
  EXPECT_TRUE(started.ok()) << started.status();
  return *std::move(started);
}

std::string ask(const HttpEndpoint& http, const std::string& request) {
  const Fd fd = connect_to(http.address());
  EXPECT_TRUE(put(fd, request));
  return read_all(fd);
}

TEST(HttpRequest, IsReadOrRefused) {
  EXPECT_EQ(parse_http_request("GET / HTTP/1.1\r\nHost: x\r\n").status, 0);
  EXPECT_EQ(parse_http_request("").status, 0);
  EXPECT_EQ(parse_http_request(std::string(8 << 10, 'x')).status, 431);
  for (const char* bad : {"\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / FTP\r\n\r\n"}) {
    EXPECT_EQ(parse_http_request(bad).status, 400) << bad;
  }
  EXPECT_EQ(parse_http_request("POST / HTTP/1.1\r\n\r\n").status, 405);
  const HttpRequest get = parse_http_request("GET /metrics?a=b HTTP/1.0\r\n\r\n");
  EXPECT_EQ(get.status, 200);
  EXPECT_EQ(get.path, "/metrics");
  EXPECT_TRUE(parse_http_request("HEAD / HTTP/1.1\r\n\r\n").head_only);
}

TEST(HttpEndpoint, Answers) {
  const auto http = endpoint();
  EXPECT_THAT(ask(*http, kProbe), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(ask(*http, kProbe), EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(ask(*http, "GET /readyz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(ask(*http, "GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\nm 1\n"));
  EXPECT_THAT(ask(*http, "GET /metrics/gateway HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\ng 1\n"));
  EXPECT_THAT(ask(*http, "HEAD /metrics HTTP/1.1\r\n\r\n"), HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(ask(*http, "HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(ask(*http, "GET /else HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ask(*http, "DELETE /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
}

TEST(HttpEndpoint, AnswersOnlyLocalNamesIfAsked) {
  const auto http = HttpEndpoint::start(
      "127.0.0.1:0", {[] { return std::string("m 1\n"); }, [] { return HttpResponse{200, ""}; },
                      [] { return HttpResponse{200, "ok\n"}; },
                      [] { return HttpResponse{200, "g 1\n"}; }, /*local_only=*/true});
  ASSERT_TRUE(http.ok());
  const auto status_of = [&](const std::string& host) {
    return ask(**http, "GET /metrics HTTP/1.1\r\nA: b\r\n" + host + "\r\n").substr(9, 3);
  };
  EXPECT_EQ(status_of("Host: localhost:9400\r\n"), "200");
  EXPECT_EQ(status_of("HOST:127.0.0.1\r\n"), "200");
  EXPECT_EQ(status_of("Host: [::1]:9400\r\n"), "200");
  EXPECT_EQ(status_of(""), "200");
  EXPECT_EQ(status_of("Host: evil.example:9400\r\n"), "403");
  EXPECT_EQ(status_of("host: 127.evil.example\r\n"), "403");
  EXPECT_THAT(ask(**http, "GET /healthz HTTP/1.1\r\nHost: cluster\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
}

TEST(HttpEndpoint, ManyConnectionsOfOneHostDoNotCloseThoseOfAnother) {
  const auto http = endpoint();
  const Fd probe = connect_to(http->address(), "127.0.0.2");
  ASSERT_TRUE(put(probe, "GET /healthz HTTP/1.1\r\n"));
  std::vector<Fd> flood;
  for (size_t i = 0; i < 3 * HttpEndpoint::kMaxConnections; ++i) {
    flood.push_back(connect_to(http->address()));
    put(flood.back(), "GET");
  }
  EXPECT_EQ(read_all(flood.front()), "") << "the first of the many is closed";
  ASSERT_TRUE(put(probe, "\r\n"));
  EXPECT_THAT(read_all(probe), EndsWith("ok\n"));
}

// Probes are answered one after another, as many at once as there are descriptors in reserve, and
// connections above that are closed at once.
TEST(HttpEndpoint, AnswersProbesWithoutDescriptors) {
  const auto http = endpoint();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  constexpr size_t kAtOnce = HttpEndpoint::kReserved;
  std::vector<Fd> one_by_one, at_once, above;
  for (auto* fds : {&one_by_one, &at_once, &above}) {
    for (size_t i = 0; i < kAtOnce; ++i) fds->push_back(unconnected());
  }
  rlimit none = limit;
  none.rlim_cur = static_cast<rlim_t>(above.back().get()) + 1;
  std::vector<Fd> holes;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (;;) {
    Fd hole(dup(above.back().get()));
    if (!hole.valid()) break;
    holes.push_back(std::move(hole));
  }
  // Sanitizers need descriptors for their messages, so nothing is expected before there are some.
  std::vector<std::string> answers, answers_at_once, answers_above;
  for (const Fd& fd : one_by_one) {
    connect_to(http->address(), fd);
    put(fd, kProbe);
    answers.push_back(read_all(fd));
  }
  for (const Fd& fd : at_once) connect_to(http->address(), fd);
  for (const Fd& fd : above) {
    connect_to(http->address(), fd);
    answers_above.push_back(read_all(fd));
  }
  for (const Fd& fd : at_once) {
    put(fd, kProbe);
    answers_at_once.push_back(read_all(fd));
  }
  holes.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(answers, Each(EndsWith("ok\n")));
  EXPECT_THAT(answers_at_once, Each(EndsWith("ok\n")));
  EXPECT_THAT(answers_above, Each(""));
  EXPECT_THAT(ask(*http, kProbe), EndsWith("ok\n"));
}

TEST(HttpEndpoint, ARequestInPiecesIsOne) {
  const auto http = endpoint();
  const Fd fd = connect_to(http->address());
  for (const char c : std::string(kProbe)) ASSERT_TRUE(put(fd, std::string(1, c)));
  EXPECT_THAT(read_all(fd), EndsWith("ok\n"));
}

// Neither clients that say nothing nor those that never come to an end keep a probe waiting.
TEST(HttpEndpoint, SilentAndUnfinishedClientsDelayNoOther) {
  const auto http = endpoint();
  std::vector<Fd> silent;
  for (size_t i = 0; i < 3 * HttpEndpoint::kMaxConnections; ++i) {
    silent.push_back(connect_to(http->address()));
    ASSERT_TRUE(silent.back().valid());
    if (i % 2 == 0) put(silent.back(), "GET /healthz HTTP/1.1\r\nA: ");
  }
  EXPECT_THAT(ask(*http, kProbe), EndsWith("ok\n"));
  // Their time is over without their doing.
  for (const Fd& fd : silent) EXPECT_EQ(read_all(fd), "");
}

TEST(HttpEndpoint, ARequestIsBounded) {
  const auto http = endpoint();
  const Fd fd = connect_to(http->address());
  const std::string piece(64 << 10, 'a');
  put(fd, "GET /healthz HTTP/1.1\r\nA: ");
  size_t sent = 0;
  while (put(fd, piece)) {
    sent += piece.size();
    ASSERT_LT(sent, size_t{64} << 20) << "the server continues to read";
  }
  EXPECT_THAT(ask(*http, kProbe), EndsWith("ok\n"));
}

// What follows the head is no concern of a GET.
TEST(HttpEndpoint, BodiesAreNotRead) {
  const auto http = endpoint();
  const std::string answer =
      ask(*http, "GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_THAT(answer, EndsWith("ok\n"));
}

TEST(HttpEndpoint, ProbesDoNotWaitForMetrics) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> made{0};
  const auto http = endpoint([&] {
    gone.wait();
    return std::string(1 << 20, static_cast<char>('a' + made++));
  });
  std::vector<Fd> scrapes;
  for (size_t i = 0; i < HttpEndpoint::kMaxScrapes; ++i) {
    scrapes.push_back(connect_to(http->address()));
    ASSERT_TRUE(put(scrapes.back(), "GET /metrics HTTP/1.1\r\n\r\n"));
  }
  EXPECT_THAT(ask(*http, kProbe), EndsWith("ok\n"));
  EXPECT_THAT(ask(*http, "GET /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
  go.set_value();
  for (const Fd& fd : scrapes) EXPECT_GT(read_all(fd).size(), size_t{1} << 20);
  EXPECT_LE(made.load(), 2) << "one for the first, and one for all who asked meanwhile";
}

TEST(HttpEndpoint, AddressesThatCannotBe) {
  const auto http = endpoint();
  const auto second = HttpEndpoint::start(http->address(), {});
  EXPECT_THAT(std::string(second.status().message()),
              StartsWith("http: cannot listen on " + http->address() + ": "));
  EXPECT_FALSE(HttpEndpoint::start("127.0.0.1", {}).ok());
  EXPECT_FALSE(HttpEndpoint::start("192.0.2.1:0", {}).ok()) << "not an address of this machine";
}

}  // namespace
}  // namespace tandem
