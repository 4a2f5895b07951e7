// Reads HTTP/1.1 requests (RFC 9112) out of a connection's bytes. Strict, because what two programs
// read differently is how requests are smuggled past a proxy: lines end with CRLF, lengths are
// given once, and what is doubtful is refused. Bounded: it holds no more than its limits.
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
  bool in_chunks = true;   // the client knows chunked answers (HTTP/1.1)

  // Values of headers that come more than once, joined with ", ". Empty: none.
  std::string header(absl::string_view lower_case_name) const;
};

class HttpReader {
 public:
  struct Limits {
    size_t head_bytes;  // request line and headers; and trailers
    size_t body_bytes;
  };
  enum class State { kHead, kBody, kWhole, kRefused };

  explicit HttpReader(Limits limits) : limits_(limits) {}

  // Takes bytes until the request is whole or refused; gives how many of them.
  size_t feed(absl::string_view bytes);

  State state() const { return state_; }
  // kRefused: the status that the request deserves.
  int refusal() const { return refusal_; }
  // Anything of a request has come.
  bool begun() const { return state_ != State::kHead || !line_.empty() || head_bytes_ > 0; }
  // The client waits for "100 Continue" before it sends the body; true once.
  bool take_expectation() { return std::exchange(expects_, false) && state_ == State::kBody; }
  // At most Limits' together.
  size_t held_bytes() const { return head_bytes_ + message_.body.capacity(); }

  // kWhole: the request, and reads the next one from here on.
  HttpMessage take();

 private:
  // What the next bytes are.
  enum class Part { kLine, kHeader, kSized, kChunkSize, kChunk, kChunkEnd, kTrailer };

  size_t feed_line(absl::string_view bytes);
  void on_line(absl::string_view line);
  void on_request_line(absl::string_view line);
  void on_header(absl::string_view line);
  void on_head();
  void on_chunk_size(absl::string_view line);
  void grow_body(size_t more);
  size_t feed_body(absl::string_view bytes);
  void refuse(int status);

  const Limits limits_;
  State state_ = State::kHead;
  Part part_ = Part::kLine;
  int refusal_ = 0;
  std::string line_;       // so far, without its CRLF
  size_t head_bytes_ = 0;  // of lines of this request
  size_t left_ = 0;        // of the body, or of its chunk
  bool expects_ = false;
  HttpMessage message_;
};

}  // namespace tandem
