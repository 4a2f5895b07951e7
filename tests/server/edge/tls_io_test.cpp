// HTTPS on virtual time: an HttpServer above TLS above a simulated network.
#include "server/edge/tls_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/edge/http_server.h"
#include "tests/server/edge/tls_client.h"

namespace tandem {
namespace {

using test::Identity;
using test::make_identity;
using test::TlsClient;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kGet[] = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";

// A client and its connection.
struct Caller {
  int socket;
  TlsClient tls;
};

struct TlsBench {
  VirtualClock clock;
  MemoryAccount account;
  const Identity root = make_identity("root");
  const Identity own = make_identity("server", &root);
  std::shared_ptr<TlsContext> context;
  test::SimulatedNetwork* net;
  std::vector<std::shared_ptr<HttpExchange>> waiting;
  std::vector<std::string> names;  // of certificates, by request
  std::unique_ptr<HttpServer> server;

  explicit TlsBench(const Identity* clients = nullptr, int64_t memory = 256 << 20,
                    HttpServer::Bounds bounds = {})
      : account(memory) {
    context = std::make_shared<TlsContext>(*make_ssl_context(test::tls_config(own, clients)));
    auto network = std::make_unique<test::SimulatedNetwork>(&clock);
    net = network.get();
    server = std::make_unique<HttpServer>(
        bounds,
        HttpServer::Handlers{
            [this](std::shared_ptr<HttpExchange> e) { waiting.push_back(std::move(e)); },
            [](int status) { return absl::StrCat("error ", status); },
            [this](const HttpMessage&, const HttpPeer& peer) {
              names.push_back(peer.certificate_name);
              return HttpAdmission();
            }},
        &account, tls_io(std::move(network), context));
  }
  ~TlsBench() { waiting.clear(); }

  int connect(const std::string& host = "10.0.0.1") {
    const int socket = net->connect(host);
    server->add_connection(socket);
    server->step();
    return socket;
  }
  Caller call(const TlsClient::Options& options = {}, const std::string& host = "10.0.0.1") {
    const int socket = connect(host);
    Caller out{socket, TlsClient(net, socket, options)};
    settle(out);
    return out;
  }
  void settle() {
    for (int i = 0; i < 50; ++i) server->step();
  }
  void settle(Caller& caller) {
    for (int i = 0; i < 30; ++i) {
      caller.tls.pump();
      server->step();
    }
    caller.tls.pump();
  }
  void get(Caller& caller, const std::string& request = kGet) {
    caller.tls.send(request);
    settle(caller);
  }
};

TEST(TlsIo, ServesRequestsOfOneConnection) {
  TlsBench b;
  Caller ann = b.call({.trusted = &b.root, .protocols = "\x02h2\x08http/1.1"});
  ASSERT_TRUE(ann.tls.connected()) << ann.tls.error;
  EXPECT_EQ(ann.tls.version(), "TLSv1.3");
  EXPECT_EQ(ann.tls.protocol(), "http/1.1");
  for (int i = 0; i < 3; ++i) {
    b.get(ann);
    ASSERT_EQ(b.waiting.size(), 1U);
    EXPECT_EQ(b.waiting[0]->peer.address, absl::StrCat("ipv4:10.0.0.1:", ann.socket));
    EXPECT_EQ(b.names.back(), "");
    b.waiting[0]->respond(200, {}, absl::StrCat("answer ", i));
    b.waiting.clear();
    b.settle(ann);
    EXPECT_THAT(ann.tls.received, EndsWith(absl::StrCat("\r\n\r\nanswer ", i)));
  }
}

TEST(TlsIo, LargeBodiesAndAnswersPassASlowNetwork) {
  TlsBench b;
  Caller ann = b.call();
  const std::string body(300 << 10, 'b');
  ann.tls.send(absl::StrCat("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: ", body.size(),
                            "\r\n\r\n", body));
  b.settle(ann);
  ASSERT_EQ(b.waiting.size(), 1U);
  EXPECT_EQ(b.waiting[0]->message.body, body);
  std::string answer;
  for (int i = 0; i < 40000; ++i) absl::StrAppend(&answer, i, " ");
  b.net->set_capacity(ann.socket, 1000);
  b.waiting[0]->respond(200, {}, answer);
  for (int i = 0; i < 20; ++i) b.settle(ann);
  EXPECT_THAT(ann.tls.received, EndsWith(absl::StrCat("\r\n\r\n", answer)));
}

TEST(TlsIo, OnlyVersionsAndProtocolsThatItSpeaks) {
  TlsBench b;
  Caller older = b.call({.newest = TLS1_2_VERSION});
  EXPECT_TRUE(older.tls.connected());
  EXPECT_EQ(older.tls.version(), "TLSv1.2");
  EXPECT_THAT(older.tls.cipher(), StartsWith("ECDHE-"));
  Caller old = b.call({.newest = TLS1_1_VERSION});
  EXPECT_FALSE(old.tls.connected());
  EXPECT_THAT(old.tls.error, HasSubstr("protocol version"));
  EXPECT_TRUE(b.net->output_ended(old.socket));
  Caller http2 = b.call({.protocols = "\x02h2"});
  EXPECT_FALSE(http2.tls.connected());
  EXPECT_THAT(http2.tls.error, HasSubstr("no application protocol"));
}

TEST(TlsIo, NoRenegotiation) {
  TlsBench b;
  Caller ann = b.call({.newest = TLS1_2_VERSION});
  SSL_renegotiate(ann.tls.ssl());
  SSL_do_handshake(ann.tls.ssl());
  b.settle(ann);
  EXPECT_THAT(ann.tls.error, HasSubstr("no renegotiation"));
}

TEST(TlsIo, ClientsAreNamedByTheirCertificates) {
  const Identity clients = make_identity("clients");
  TlsBench b(&clients);
  const Identity ann = make_identity("ann", &clients, "DNS:elsewhere.example");
  const Identity nameless = make_identity("", &clients, "URI:spiffe://example/bob");
  const Identity address = make_identity("", &clients, "IP:10.1.2.3");
  for (const int newest : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    b.names.clear();
    for (const Identity* const each : {&ann, &nameless, &address}) {
      Caller caller = b.call({.identity = each, .newest = newest});
      b.get(caller);
    }
    EXPECT_THAT(b.names, testing::ElementsAre("ann", "spiffe://example/bob", "10.1.2.3"));
  }
}

TEST(TlsIo, ClientsWithoutACertificateOfTheAuthorityAreRefused) {
  const Identity clients = make_identity("clients");
  const Identity stranger = make_identity("stranger");
  TlsBench b(&clients);
  const struct {
    const Identity* identity;
    int newest;
    const char* error;
  } cases[] = {
      {nullptr, TLS1_2_VERSION, "handshake failure"},
      {nullptr, TLS1_3_VERSION, "certificate required"},
      {&stranger, TLS1_2_VERSION, "unknown ca"},
      {&stranger, TLS1_3_VERSION, "unknown ca"},
  };
  for (const auto& c : cases) {
    Caller caller = b.call({.identity = c.identity, .newest = c.newest});
    // With TLS 1.3 the client sees it only in an answer.
    if (caller.tls.connected()) b.get(caller);
    EXPECT_THAT(caller.tls.error, HasSubstr(c.error));
    EXPECT_TRUE(b.net->output_ended(caller.socket));
    b.net->close_client(caller.socket);
    b.settle();
    EXPECT_TRUE(b.net->closed(caller.socket));
  }
  EXPECT_TRUE(b.names.empty());
  EXPECT_EQ(b.account.used(), 0);
}

TEST(TlsIo, PlainHttpIsRefusedAtOnceInPlainText) {
  TlsBench b;
  const int socket = b.connect();
  b.net->send_to_server(socket, kGet);
  b.settle();
  const std::string answer = b.net->read_from_server(socket);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, EndsWith("Content-Length: 23\r\n\r\nThis port needs HTTPS.\n"));
  EXPECT_TRUE(b.net->output_ended(socket));
  EXPECT_EQ(b.net->unread_input(socket), 0U);  // so the client gets no reset
  EXPECT_FALSE(b.net->closed(socket));
  b.net->close_client(socket);
  b.settle();
  EXPECT_TRUE(b.net->closed(socket));
}

TEST(TlsIo, GarbageIsDiscardedUpToALimit) {
  TlsBench b;
  const int socket = b.connect();
  b.net->send_to_server(socket, std::string(2000, '\x55'));
  b.settle();
  EXPECT_TRUE(b.net->output_ended(socket));
  EXPECT_FALSE(b.net->closed(socket));
  b.net->send_to_server(socket, std::string(70 << 10, '\x55'));
  b.settle();
  EXPECT_TRUE(b.net->closed(socket));
}

TEST(TlsIo, AHandshakeHasADeadline) {
  TlsBench b;
  const Caller complete = b.call();
  const int silent = b.connect();
  const int cut = b.connect();
  TlsClient hello(b.net, cut, {});
  test::SimulatedNetwork aside(&b.clock);  // takes the client's first flight
  const int all = aside.connect("10.0.0.1");
  TlsClient other(&aside, all, {});
  other.pump();
  std::string flight(aside.unread_input(all), '\0');
  aside.receive(all, flight.data(), flight.size());
  b.net->send_to_server(cut, flight.substr(0, flight.size() / 2));
  b.clock.advance(std::chrono::milliseconds(9500));
  b.settle();
  for (const int socket : {silent, cut, complete.socket}) EXPECT_FALSE(b.net->closed(socket));
  b.clock.advance(std::chrono::seconds(1));
  b.settle();
  // A complete handshake does not extend it.
  for (const int socket : {silent, cut, complete.socket}) EXPECT_TRUE(b.net->closed(socket));
  EXPECT_EQ(b.account.used(), 0);
}

TEST(TlsIo, AClientThatLeavesInItsHandshakeIsClosed) {
  TlsBench b;
  const int socket = b.connect();
  TlsClient client(b.net, socket, {});
  client.pump();
  b.net->close_client(socket);
  b.settle();
  EXPECT_TRUE(b.net->closed(socket));
  const int reset = b.connect();
  b.net->reset_client(reset);
  b.settle();
  EXPECT_TRUE(b.net->closed(reset));
  EXPECT_EQ(b.account.used(), 0);
}

TEST(TlsIo, AHandshakeThatCannotWriteWaits) {
  TlsBench b;
  const int socket = b.connect();
  b.net->set_capacity(socket, 100);
  Caller ann{socket, TlsClient(b.net, socket, {})};
  b.settle(ann);
  EXPECT_TRUE(ann.tls.connected());
  const int stuck = b.connect();
  b.net->set_capacity(stuck, 0);
  TlsClient client(b.net, stuck, {});
  client.pump();
  b.settle();
  EXPECT_FALSE(b.net->closed(stuck));
  b.net->close_client(stuck);
  b.settle();
  EXPECT_TRUE(b.net->closed(stuck));
}

// Both the number of handshakes and their memory are bounded before any client is known.
TEST(TlsIo, HandshakesAreChargedAndRefusedAboveTheAccount) {
  TlsBench b(nullptr, 4 << 20);
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i) sockets.push_back(b.connect());
  const auto open = std::count_if(sockets.begin(), sockets.end(),
                                  [&](int socket) { return !b.net->closed(socket); });
  EXPECT_EQ(open, 9);  // of 226 KiB each, in a client's half of the account
  EXPECT_GE(b.account.used(), open * (224 << 10));
  EXPECT_LE(b.account.used(), 2 << 20);
  Caller other = b.call({}, "10.0.0.2");
  b.get(other);
  EXPECT_EQ(b.waiting.size(), 1U);
  // An open connection needs less.
  const int64_t with_request = b.account.used();
  for (const int socket : sockets) b.net->close_client(socket);
  b.settle();
  EXPECT_LE(b.account.used(), with_request - open * (224 << 10));
  EXPECT_LE(b.account.used(), 100 << 10);
}

TEST(TlsIo, AFloodOfHandshakesDelaysNeitherOpenConnectionsNorOtherHosts) {
  TlsBench b;
  Caller open = b.call();
  std::vector<std::unique_ptr<TlsClient>> flood;
  for (int i = 0; i < 100; ++i) {
    const int socket = b.net->connect("10.0.0.1");
    b.server->add_connection(socket);
    flood.push_back(std::make_unique<TlsClient>(b.net, socket, TlsClient::Options{}));
    flood.back()->pump();
  }
  const int socket = b.net->connect("10.0.0.2");
  b.server->add_connection(socket);
  TlsClient other(b.net, socket, {});
  other.pump();
  open.tls.send(kGet);
  b.server->step();
  EXPECT_EQ(b.waiting.size(), 1U);
  other.pump();
  b.server->step();
  other.pump();
  EXPECT_TRUE(other.connected());
  const auto begun = [&] {
    int count = 0;
    for (auto& each : flood) {
      each->pump();
      count += each->connected() ? 1 : 0;
    }
    return count;
  };
  EXPECT_LE(begun(), 8);
  for (int i = 0; i < 60; ++i) b.server->step();
  EXPECT_EQ(begun(), 100);
}

TEST(TlsIo, ClosingAConnectionInALineOfHandshakesKeepsTheOthers) {
  TlsBench b;
  std::vector<std::pair<int, std::unique_ptr<TlsClient>>> line;
  for (int i = 0; i < 12; ++i) {
    const int socket = b.net->connect("10.0.0.1");
    b.server->add_connection(socket);
    line.emplace_back(socket, std::make_unique<TlsClient>(b.net, socket, TlsClient::Options{}));
    line.back().second->pump();
  }
  b.server->step();  // four have had their turn
  for (int i = 6; i < 12; ++i) b.net->reset_client(line[static_cast<size_t>(i)].first);
  b.server->step();
  b.settle();
  for (int i = 0; i < 12; ++i) {
    auto& [socket, client] = line[static_cast<size_t>(i)];
    client->pump();
    EXPECT_EQ(client->connected(), i < 6) << i;
    EXPECT_EQ(b.net->closed(socket), i >= 6) << i;
  }
}

TEST(TlsIo, NewConnectionsUseTheNewCertificateAndOpenOnesContinue) {
  TlsBench b;
  Caller streaming = b.call({.trusted = &b.root});
  b.get(streaming);
  b.waiting[0]->begin(200, {});
  b.waiting[0]->write("before");
  const Identity fresh = make_identity("fresh");
  b.context->replace(*make_ssl_context(test::tls_config(make_identity("server", &fresh))));
  b.waiting[0]->write(" and after");
  b.settle(streaming);
  EXPECT_THAT(streaming.tls.received, EndsWith("6\r\nbefore\r\na\r\n and after\r\n"));
  const Caller old = b.call({.trusted = &b.root});
  EXPECT_FALSE(old.tls.connected());
  Caller next = b.call({.trusted = &fresh});
  EXPECT_TRUE(next.tls.connected());
  EXPECT_EQ(next.tls.issuer(), "fresh");
}

TEST(TlsIo, TheEndOfAResponseIsAnnounced) {
  TlsBench b;
  Caller ann = b.call();
  b.get(ann, "GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  b.waiting[0]->respond(200, {}, "whole");
  b.settle(ann);
  EXPECT_THAT(ann.tls.received, EndsWith("whole"));
  EXPECT_TRUE(ann.tls.received_close_notify());
  ann.tls.send_close_notify();
  b.settle();
  EXPECT_TRUE(b.net->closed(ann.socket));
}

TEST(TlsIo, AResponseThatIsCutOffHasNoAnnouncedEnd) {
  TlsBench b;
  Caller ann = b.call();
  b.get(ann, "GET /x HTTP/1.0\r\nHost: h\r\n\r\n");
  b.waiting[0]->begin(200, {});
  b.waiting[0]->write("half");
  b.settle(ann);
  b.waiting.clear();
  b.server->stop();
  ann.tls.pump();
  EXPECT_THAT(ann.tls.received, EndsWith("half"));
  EXPECT_TRUE(b.net->closed(ann.socket));
  EXPECT_FALSE(ann.tls.received_close_notify());
}

TEST(TlsIo, CloseNotifyClosesAConnectionAndIsSentToIdleOnes) {
  TlsBench b;
  Caller leaving = b.call();
  leaving.tls.send_close_notify();
  b.settle();
  EXPECT_TRUE(b.net->closed(leaving.socket));
  Caller idle = b.call();
  b.server->drain();
  b.settle();
  idle.tls.pump();
  EXPECT_TRUE(b.net->closed(idle.socket));
  EXPECT_TRUE(idle.tls.received_close_notify());
}

// OpenSSL decrypts whole records of 16 KiB; the server discards in pieces of 4 KiB, up to 1 MiB.
TEST(TlsIo, InputThatOpenSslHoldsIsRead) {
  TlsBench b;
  Caller ann = b.call();
  b.get(ann, "GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  b.waiting[0]->respond(200, {}, "whole");
  b.settle(ann);
  ann.tls.send(std::string(4 << 10, 'x'));
  for (int i = 0; i < 64; ++i) ann.tls.send(std::string(16 << 10, 'x'));
  for (int i = 0; i < 600; ++i) b.server->step();
  EXPECT_TRUE(b.net->closed(ann.socket)) << "the last 12 KiB are not in the network any more";
}

TEST(TlsIo, KeyUpdatesAreAnsweredAndAFloodOfThemDelaysNoClient) {
  TlsBench b;
  Caller ann = b.call();
  Caller bob = b.call();
  ann.tls.update_key();
  b.get(ann);
  ASSERT_EQ(b.waiting.size(), 1U);
  b.waiting[0]->respond(200, {}, "answer");
  b.settle(ann);
  EXPECT_THAT(ann.tls.received, EndsWith("answer"));
  for (int i = 0; i < 200; ++i) ann.tls.update_key();
  const size_t before = b.net->unread_input(ann.socket);
  bob.tls.send(kGet);
  b.server->step();
  EXPECT_EQ(b.waiting.size(), 2U);
  EXPECT_GT(b.net->unread_input(ann.socket), before - 200) << "more than a few in one round";
  b.net->close_client(ann.socket);
  for (int i = 0; i < 10; ++i) b.settle();
  EXPECT_TRUE(b.net->closed(ann.socket));
}

}  // namespace
}  // namespace tandem
