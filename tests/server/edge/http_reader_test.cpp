#include "server/edge/http_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using State = HttpReader::State;

constexpr HttpReader::Limits kLimits = {/*head_bytes=*/1024, /*body_bytes=*/100};
constexpr char kHead[] = "POST /v1/x?y=z HTTP/1.1\r\nHost: h\r\n";

// Accepts the head, too.
size_t consume(HttpReader& reader, absl::string_view bytes) {
  size_t taken = reader.consume(bytes);
  if (reader.state() != State::kHeadEnd) return taken;
  reader.accept_head();
  return taken + reader.consume(bytes.substr(taken));
}

// What becomes of a request, whole and byte by byte: the same.
struct Read {
  State state;
  int refusal;
  size_t taken;
  HttpMessage message;
};
Read read(const std::string& bytes) {
  HttpReader whole(kLimits);
  HttpReader pieces(kLimits);
  const size_t taken = consume(whole, bytes);
  size_t in_pieces = 0;
  for (const char c : bytes) in_pieces += consume(pieces, {&c, 1});
  EXPECT_EQ(whole.state(), pieces.state()) << bytes;
  EXPECT_EQ(whole.refusal(), pieces.refusal()) << bytes;
  if (whole.state() == State::kWhole) EXPECT_EQ(taken, in_pieces) << bytes;
  Read out = {whole.state(), whole.refusal(), taken, {}};
  if (out.state == State::kWhole) out.message = whole.take();
  return out;
}
std::string post(const std::string& headers, const std::string& body = "") {
  return kHead + headers + "\r\n" + body;
}

TEST(HttpReader, ReadsWhatHasALength) {
  const Read r = read(post("Content-Length: 5\r\nX-Two: a\r\nx-two:  b \r\n", "helloGET /"));
  ASSERT_EQ(r.state, State::kWhole);
  EXPECT_EQ(r.message.method, "POST");
  EXPECT_EQ(r.message.path, "/v1/x");
  EXPECT_EQ(r.message.body, "hello");
  EXPECT_EQ(r.message.header("x-two"), "a, b");
  EXPECT_EQ(r.message.header("none"), "");
  EXPECT_TRUE(r.message.keep_alive);
  EXPECT_EQ(r.taken, post("Content-Length: 5\r\nX-Two: a\r\nx-two:  b \r\n", "hello").size())
      << "what follows is the next request's";
}

TEST(HttpReader, ReadsWhatComesInChunks) {
  const std::string chunks =
      "5\r\nhello\r\n1;a=b\r\n,\r\nA \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
  const Read r = read(post("Transfer-Encoding: Chunked\r\n", chunks));
  ASSERT_EQ(r.state, State::kWhole);
  EXPECT_EQ(r.message.body, "hello,0123456789");
}

TEST(HttpReader, ReadsWhatHasNoBody) {
  const Read r = read("GET / HTTP/1.1\r\nHost: h\r\nConnection: te, Close\r\n\r\n");
  ASSERT_EQ(r.state, State::kWhole);
  EXPECT_FALSE(r.message.keep_alive);
  const Read old = read("GET / HTTP/1.0\r\n\r\n");
  ASSERT_EQ(old.state, State::kWhole);
  EXPECT_FALSE(old.message.keep_alive);
  EXPECT_FALSE(old.message.in_chunks);
}

TEST(HttpReader, ReadsOneRequestAfterTheOther) {
  HttpReader reader(kLimits);
  std::string bytes = post("Content-Length: 1\r\n", "a") + post("Content-Length: 2\r\n", "bc");
  bytes.erase(0, consume(reader, bytes));
  ASSERT_EQ(reader.state(), State::kWhole);
  EXPECT_EQ(reader.take().body, "a");
  EXPECT_FALSE(reader.begun());
  EXPECT_EQ(consume(reader, bytes), bytes.size());
  EXPECT_EQ(reader.take().body, "bc");
}

TEST(HttpReader, FindsRequestsThatWaitForContinue) {
  HttpReader reader(kLimits);
  reader.consume(post("Expect: 100-Continue\r\nContent-Length: 1\r\n"));
  EXPECT_EQ(reader.state(), State::kHeadEnd);
  EXPECT_FALSE(reader.take_expectation()) << "not before the head is accepted";
  reader.accept_head();
  EXPECT_TRUE(reader.take_expectation());
  EXPECT_FALSE(reader.take_expectation());
  reader.consume("x");
  EXPECT_EQ(reader.state(), State::kWhole);
}

TEST(HttpReader, StopsAfterTheHead) {
  HttpReader reader(kLimits);
  const std::string head = post("Content-Length: 5\r\n");
  EXPECT_EQ(reader.consume(head + "hello"), head.size());
  EXPECT_EQ(reader.state(), State::kHeadEnd);
  EXPECT_EQ(reader.head().path, "/v1/x");
  EXPECT_EQ(reader.content_length(), 5U);
  EXPECT_TRUE(reader.has_body());
  EXPECT_EQ(reader.consume("hello"), 0U);
  reader.accept_head();
  EXPECT_EQ(reader.consume("hello"), 5U);
  EXPECT_EQ(reader.take().body, "hello");
  reader.consume(post(""));
  EXPECT_FALSE(reader.has_body());
  reader.accept_head();
  EXPECT_EQ(reader.state(), State::kWhole);
}

// Only SP and HTAB surround a value. A proxy that knows no other white space passes these fields
// on, and reads another length than a server that strips it.
TEST(HttpReader, OnlySpacesAndTabsAreTrimmed) {
  EXPECT_EQ(read(post("Content-Length: \t 1 \t\r\n", "x")).message.body, "x");
  for (const std::string space : {"\x0b", "\x0c", "\x1c", "\x85", "\xa0"}) {
    for (const std::string& value : {space + "chunked", "chunked" + space}) {
      EXPECT_NE(read(post("Transfer-Encoding: " + value + "\r\n", "0\r\n\r\n")).refusal, 0);
    }
    for (const std::string& value : {space + "5", "5" + space, " " + space + "5"}) {
      EXPECT_EQ(read(post("Content-Length: " + value + "\r\n", "hello")).refusal, 400);
    }
  }
  EXPECT_EQ(read(post("Connection: \x0b"
                      "close\r\n"))
                .refusal,
            400);
  EXPECT_EQ(read(post("Connection: te,\x0c"
                      "close\r\n"))
                .refusal,
            400);
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", "1\x0b\r\nx\r\n")).refusal, 400);
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", " 1\r\nx\r\n")).refusal, 400);
  EXPECT_EQ(read("GET /\tx HTTP/1.1\r\n").refusal, 400);
}

// What one program reads in one way and the next in another is refused.
TEST(HttpReader, RefusesWhatIsDoubtful) {
  for (const std::string& bad : {
           std::string("\r\n\r\n"),
           std::string("GET /\r\n\r\n"),
           std::string("GET  / HTTP/1.1\r\n"),
           std::string("GET / HTTP/1.1\nHost: h\n\n"),
           std::string("GET / HTTP/1.1 \r\n"),
           std::string("GET http://h/ HTTP/1.1\r\n"),
           std::string("G(T / HTTP/1.1\r\n"),
           std::string("GET / HTTP/1.1\r\n\r\n"),  // no host
           std::string("GET /\x01 HTTP/1.1\r\n"),
           std::string("GET / FTP/1.1\r\n"),
           post("Host: two\r\n"),
           post("Content-Length: 1\r\nContent-Length: 1\r\n"),
           post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
           post("Content-Length: +1\r\n"),
           post("Content-Length: 0x1\r\n"),
           post("Content-Length:\r\n"),
           post("Content-Length: 1, 1\r\n"),
           post("A : b\r\n"),
           post(" folded\r\n"),
           post("A\r\n"),
           post("A: b\rc\r\n"),
           post("A: b\x01\r\n"),
           post("Transfer-Encoding: chunked\r\n", "g\r\n"),
           post("Transfer-Encoding: chunked\r\n", "\r\n"),
           post("Transfer-Encoding: chunked\r\n", "-1\r\n"),
           post("Transfer-Encoding: chunked\r\n", "1\r\nab\r\n"),
           post("Transfer-Encoding: chunked\r\n", "1\nb\r\n"),
           std::string("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
       }) {
    EXPECT_EQ(read(bad).refusal, 400) << bad;
  }
  EXPECT_EQ(read("GET / HTTP/2.0\r\n").refusal, 505);
  EXPECT_EQ(read(post("Transfer-Encoding: gzip, chunked\r\n")).refusal, 501);
  EXPECT_EQ(read(post("Expect: magic\r\nContent-Length: 1\r\n")).refusal, 417);
}

TEST(HttpReader, RefusesWhatIsTooLong) {
  EXPECT_EQ(read("GET /" + std::string(1024, 'x')).refusal, 431);
  EXPECT_EQ(read(post("A: " + std::string(1024, 'x'))).refusal, 431);
  EXPECT_EQ(read(post("Content-Length: 101\r\n")).refusal, 413);
  EXPECT_EQ(read(post("Content-Length: 99999999999999999999999\r\n")).refusal, 413);
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", "65\r\n")).refusal, 413);
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", "fffffffffffffffffff\r\n")).refusal, 413);
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", "1;" + std::string(200, 'x'))).refusal,
            400);
  const std::string trailer = "0\r\nA: " + std::string(1024, 'x');
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", trailer)).refusal, 431);
  const std::string some = "64\r\n" + std::string(100, 'x') + "\r\n1\r\n";
  EXPECT_EQ(read(post("Transfer-Encoding: chunked\r\n", some)).refusal, 413);
}

// What one client may hold is bounded by that: a body whose memory doubled would be refused.
TEST(HttpReader, HoldsNoMoreThanMayCome) {
  constexpr size_t kBody = 80;  // of at most 100
  for (const std::string& start :
       {post("Content-Length: 80\r\n"), post("Transfer-Encoding: chunked\r\n", "50\r\n")}) {
    HttpReader reader(kLimits);
    consume(reader, start);
    const size_t most = start.find("80") != start.npos ? kBody : kLimits.body_bytes;
    for (size_t i = 0; i < kBody; ++i) {
      reader.consume("x");
      ASSERT_LE(reader.body_bytes(), most) << i;
    }
  }
}

}  // namespace
}  // namespace tandem
