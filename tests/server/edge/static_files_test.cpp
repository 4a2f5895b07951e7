#include "server/edge/static_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/edge/simulated_network.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const std::string& large() {
  static const auto* const kText = new std::string(1 << 20, 'x');
  return *kText;
}

absl::Span<const StaticFile> files() {
  static const StaticFile kFiles[] = {
      {"/", "text/html", "1a", "<html>", "zipped", false},
      {"/assets/large.js", "text/javascript", "2b", large(), "z", true}};
  return kFiles;
}

// A server of these files on a simulated network.
struct Site {
  VirtualClock clock;
  MemoryAccount account{64 << 20};
  test::SimulatedNetwork* net;
  std::unique_ptr<HttpServer> server;

  explicit Site(HttpServer::Bounds bounds = {}) {
    auto network = std::make_unique<test::SimulatedNetwork>(&clock);
    net = network.get();
    server = std::make_unique<HttpServer>(
        bounds,
        HttpServer::Handlers{[](const std::shared_ptr<HttpExchange>& e) {
                               respond_with(*find_file(files(), e->message.path), *e);
                             },
                             [](int status) { return absl::StrCat("error ", status); }, nullptr},
        &account, std::move(network));
  }
  void steps(int n = 4) const {
    for (int i = 0; i < n; ++i) server->step();
  }
  int connect() const {
    const int socket = net->connect("10.0.0.1");
    server->add_connection(socket);
    steps(1);
    return socket;
  }
  std::string ask(const std::string& request) const {
    const int socket = connect();
    net->send_to_server(socket, request);
    steps();
    return net->read_from_server(socket);
  }
};

std::string request(const std::string& path, const std::string& headers = "",
                    const std::string& method = "GET") {
  return absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: h\r\n", headers, "\r\n");
}

TEST(StaticFiles, FindsPaths) {
  EXPECT_EQ(find_file(files(), "/")->hash, "1a");
  EXPECT_EQ(find_file(files(), "/assets/large.js")->hash, "2b");
  for (const char* const path : {"", "/assets", "/assets/", "/assets/large.js/", "//"}) {
    EXPECT_EQ(find_file(files(), path), nullptr) << path;
  }
  EXPECT_EQ(find_file({}, "/"), nullptr);
}

TEST(StaticFiles, ReadsAcceptEncoding) {
  for (const char* const yes : {"gzip", "deflate, GZIP", "br;q=1, gzip;q=0.1", "*", "br, *;q=0.5",
                                "gzip ; q=1", "*;q=0, gzip"}) {
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  }
  for (const char* const no : {"", "identity", "br", "gzip;q=0", "gzip; q=0.0", "*;q=0",
                               "gzip;q=0, *", "gzip;q=x", "xgzip", ",;,"}) {
    EXPECT_FALSE(accepts_gzip(no)) << no;
  }
}

TEST(StaticFiles, AnswersPlainOrCompressed) {
  const Site site;
  EXPECT_EQ(
      site.ask(request("/")),
      "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"1a\"\r\nVary: Accept-Encoding\r\n"
      "Cache-Control: no-cache\r\nContent-Security-Policy: default-src 'none'; script-src "
      "'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n"
      "Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n"
      "Content-Length: 6\r\n\r\n<html>");
  const std::string zipped = site.ask(request("/", "Accept-Encoding: br, gzip\r\n"));
  EXPECT_THAT(zipped, AllOf(HasSubstr("Content-Encoding: gzip\r\n"), HasSubstr("\"1a-gzip\""),
                            EndsWith("\r\n\r\nzipped")));
  EXPECT_THAT(site.ask(request("/assets/large.js", "Accept-Encoding: gzip\r\n")),
              HasSubstr("Cache-Control: public, max-age=31536000, immutable\r\n"));
}

TEST(StaticFiles, SendsNoBodyToHeadAndToThoseThatHaveIt) {
  const Site site;
  EXPECT_THAT(site.ask(request("/", "", "HEAD")),
              AllOf(StartsWith("HTTP/1.1 200 OK"), EndsWith("Content-Length: 6\r\n\r\n")));
  for (const char* const tags : {"\"1a\"", "W/\"1a\"", "\"x\", \"1a\"", "*"}) {
    EXPECT_THAT(site.ask(request("/", absl::StrCat("If-None-Match: ", tags, "\r\n"))),
                AllOf(StartsWith("HTTP/1.1 304 Not Modified"), HasSubstr("ETag: \"1a\""),
                      EndsWith("Content-Length: 6\r\n\r\n")))
        << tags;
  }
  for (const char* const tags : {"\"1a-gzip\"", "1a", "\"2b\"", ""}) {
    EXPECT_THAT(site.ask(request("/", absl::StrCat("If-None-Match: ", tags, "\r\n"))),
                StartsWith("HTTP/1.1 200 OK"))
        << tags;
  }
}

// A reader that stops in the middle makes the server hold no part of the file.
TEST(StaticFiles, FilesAreNotCopied) {
  const Site site;
  const int socket = site.connect();
  site.net->set_capacity(socket, 8 << 10);
  site.net->send_to_server(socket, request("/assets/large.js") + request("/"));
  site.steps();
  EXPECT_EQ(site.net->unread_output(socket), 8u << 10);
  EXPECT_LT(site.account.used(), 32 << 10);
  std::string all;
  while (site.net->unread_output(socket) > 0) {
    all += site.net->read_from_server(socket, 5000);
    site.steps(2);
    EXPECT_LT(site.account.used(), 32 << 10);
  }
  const size_t body = all.find("\r\n\r\n") + 4;
  EXPECT_EQ(all.substr(body, large().size()), large());
  EXPECT_THAT(all.substr(body + large().size()),
              AllOf(StartsWith("HTTP/1.1 200 OK"), EndsWith("\r\n\r\n<html>")))
      << "the next request of the connection";
}

TEST(StaticFiles, ReadersThatStopAreDisconnected) {
  HttpServer::Bounds bounds;
  Site site(bounds);
  const int socket = site.connect();
  site.net->set_capacity(socket, 8 << 10);
  site.net->send_to_server(socket, request("/assets/large.js"));
  site.steps();
  EXPECT_FALSE(site.net->closed(socket));
  site.clock.advance(bounds.stall_time + std::chrono::seconds(2));
  site.steps();
  EXPECT_TRUE(site.net->closed(socket));
  EXPECT_EQ(site.server->exchanges(), 0);
  EXPECT_EQ(site.account.used(), 0);
}

TEST(StaticFiles, ReadersThatLeaveFreeEverything) {
  const Site site;
  const int socket = site.connect();
  site.net->set_capacity(socket, 8 << 10);
  site.net->send_to_server(socket, request("/assets/large.js"));
  site.steps();
  site.net->reset_client(socket);
  site.steps();
  EXPECT_EQ(site.server->exchanges(), 0);
  EXPECT_EQ(site.account.used(), 0);
  EXPECT_THAT(site.ask(request("/")), EndsWith("<html>"));
}

}  // namespace
}  // namespace tandem
