// HTTP requests from anywhere: read whole or in pieces they are the same, and no longer than the
// limits; what is read leaves the reader as it was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "server/edge/http_reader.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;
using State = HttpReader::State;

constexpr HttpReader::Limits kLimits = {/*head_bytes=*/512, /*body_bytes=*/64};

// Accepts every head.
size_t consume(HttpReader& reader, absl::string_view bytes) {
  size_t taken = reader.consume(bytes);
  if (reader.state() != State::kHeadEnd) return taken;
  reader.accept_head();
  return taken + reader.consume(bytes.substr(taken));
}

void check_whole(const HttpMessage& m) {
  check(m.body.size() <= kLimits.body_bytes, "a long body");
  check(!m.method.empty() && !m.path.empty() && m.path.front() == '/', "a request line", m.path);
  for (const auto& [name, value] : m.headers) {
    check(!name.empty() && (name + value).find_first_of("\r\n\v\f") == std::string::npos,
          "a header");
  }
}

void run(const std::string& bytes, size_t piece) {
  HttpReader whole(kLimits);
  HttpReader pieces(kLimits);
  const size_t taken = consume(whole, bytes);
  size_t in_pieces = 0;
  while (in_pieces < bytes.size()) {
    const size_t took =
        consume(pieces, {bytes.data() + in_pieces, std::min(piece, bytes.size() - in_pieces)});
    in_pieces += took;
    if (took == 0) break;
  }
  check(taken <= bytes.size() && whole.state() == pieces.state(), "pieces are read differently");
  check(whole.refusal() == pieces.refusal(), "pieces are refused differently");
  if (whole.state() != State::kWhole) return;
  check(taken == in_pieces, "pieces end elsewhere");
  const HttpMessage m = whole.take();
  const HttpMessage n = pieces.take();
  check_whole(m);
  check(m.body == n.body && m.headers == n.headers && m.path == n.path, "pieces differ");
  check(!whole.begun() && whole.state() == State::kHead, "something is left");
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  tandem::run(tandem::fuzz::text_of(data + 1, size - 1), 1 + data[0] % 32);
  return 0;
}
