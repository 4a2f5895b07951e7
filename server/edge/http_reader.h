// Parses HTTP/1.1 requests (RFC 9112) from a connection's bytes. Strict, because parsers that
// disagree allow requests to be smuggled past a proxy: lines end with CRLF, a length is given once,
// ambiguous input is rejected. Holds no more bytes than its limits.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

struct HttpMessage {
  std::string method;
  std::string path;                                          // as sent, without the query
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  bool keep_alive = true;  // the connection may serve another request
  bool in_chunks = true;   // the client accepts chunked responses (HTTP/1.1)

  // Repeated headers are joined with ", ". Empty if the header is absent.
  std::string header(absl::string_view lower_case_name) const;
};

class HttpReader {
 public:
  struct Limits {
    size_t head_bytes;  // request line and headers; and trailers
    size_t body_bytes;
  };
  // kHeadEnd: the head is complete, and nothing more is read before accept_head().
  enum class State { kHead, kHeadEnd, kBody, kWhole, kRefused };

  explicit HttpReader(Limits limits) : limits_(limits) {}

  // Consumes bytes until the head or the request is complete, or rejected. Returns the number
  // consumed.
  size_t consume(absl::string_view bytes);

  // REQUIRES: kHeadEnd. The request line and headers.
  const HttpMessage& head() const { return message_; }
  // REQUIRES: kHeadEnd. Whether a body follows, and its length as far as it is known (else 0).
  bool has_body() const { return part_ != Part::kSized || left_ > 0; }
  size_t content_length() const { return left_; }
  // REQUIRES: kHeadEnd. Goes on with the body: kBody, or kWhole if there is none.
  void accept_head() { state_ = has_body() ? State::kBody : State::kWhole; }

  State state() const { return state_; }
  // kRefused: the status to respond with.
  int refusal() const { return refusal_; }
  // Whether any byte of a request has arrived.
  bool begun() const { return state_ != State::kHead || !line_.empty() || head_bytes_ > 0; }
  // Whether the client waits for "100 Continue" before it sends the body. True once per request.
  bool take_expectation() { return std::exchange(expects_, false) && state_ == State::kBody; }
  // The memory of the head (at most its limit, plus a constant per header) and of the body (at most
  // its limit).
  size_t head_bytes() const;
  size_t body_bytes() const { return message_.body.capacity(); }

  // REQUIRES: kWhole. Returns the request and starts the next one.
  HttpMessage take();

 private:
  // The kind of the next bytes.
  enum class Part { kLine, kHeader, kSized, kChunkSize, kChunk, kChunkEnd, kTrailer };

  size_t read_line(absl::string_view bytes);
  void on_line(absl::string_view line);
  void on_request_line(absl::string_view line);
  void on_header(absl::string_view line);
  void on_head();
  void on_chunk_size(absl::string_view line);
  void grow_body(size_t more);
  size_t read_body(absl::string_view bytes);
  void refuse(int status);

  const Limits limits_;
  State state_ = State::kHead;
  Part part_ = Part::kLine;
  int refusal_ = 0;
  std::string line_;       // so far, without its CRLF
  size_t head_bytes_ = 0;  // of lines of this request
  size_t left_ = 0;        // bytes left of the body or chunk
  bool expects_ = false;
  HttpMessage message_;
};

}  // namespace tandem
