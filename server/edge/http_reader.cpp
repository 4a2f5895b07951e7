#include "server/edge/http_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem {
namespace {

constexpr size_t kMaxMethod = 32;
constexpr size_t kMaxChunkLine = 128;  // with its extension, which is ignored
constexpr size_t kMaxHeaders = 100;

bool is_token_character(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
}

bool is_token(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

bool is_value(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u == '\t' || (u >= 0x20 && u != 0x7f);
  });
}

// A request target: no spaces, no control characters.
bool is_target(absl::string_view text) {
  return absl::StartsWith(text, "/") && std::all_of(text.begin(), text.end(), [](char c) {
           const auto u = static_cast<unsigned char>(c);
           return u > 0x20 && u != 0x7f;
         });
}

// Without the optional white space around a value, which is SP and HTAB alone (RFC 9110, 5.6.3). A
// proxy that passes VT or FF on may read another value than a server that strips them.
absl::string_view trimmed(absl::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool all_digits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// Whether a list header ("close, te") contains the word.
bool has_word(absl::string_view list, absl::string_view word) {
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    if (absl::EqualsIgnoreCase(trimmed(part), word)) return true;
  }
  return false;
}

}  // namespace

std::string HttpMessage::header(absl::string_view lower_case_name) const {
  std::string all;
  bool found = false;
  for (const auto& [name, value] : headers) {
    if (name != lower_case_name) continue;
    absl::StrAppend(&all, found ? ", " : "", value);
    found = true;
  }
  return all;
}

size_t HttpReader::head_bytes() const {
  constexpr size_t kPerHeader = sizeof(message_.headers.front());
  return line_.capacity() + head_bytes_ + kPerHeader * message_.headers.capacity();
}

void HttpReader::refuse(int status) {
  state_ = State::kRefused;
  refusal_ = status;
  line_ = {};
  message_.body = {};
}

HttpMessage HttpReader::take() {
  HttpMessage whole = std::exchange(message_, {});
  state_ = State::kHead;
  part_ = Part::kLine;
  head_bytes_ = 0;
  left_ = 0;
  expects_ = false;
  return whole;
}

size_t HttpReader::consume(absl::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && (state_ == State::kHead || state_ == State::kBody)) {
    const absl::string_view rest = bytes.substr(taken);
    const bool in_body = part_ == Part::kSized || part_ == Part::kChunk;
    taken += in_body ? read_body(rest) : read_line(rest);
  }
  return taken;
}

// Reads to the end of the line. A line must end with CRLF and contain no other CR.
size_t HttpReader::read_line(absl::string_view bytes) {
  const size_t newline = bytes.find('\n');
  const size_t length = newline == absl::string_view::npos ? bytes.size() : newline + 1;
  const bool chunk = part_ == Part::kChunkSize || part_ == Part::kChunkEnd;
  const size_t most = chunk ? kMaxChunkLine : limits_.head_bytes - head_bytes_;
  if (line_.size() + length > most) {
    refuse(chunk ? 400 : 431);
    return length;
  }
  line_.append(bytes.data(), length);
  if (newline == absl::string_view::npos) return length;
  const std::string line = std::exchange(line_, {});
  if (!chunk) head_bytes_ += line.size();
  absl::string_view text = line;
  if (!absl::EndsWith(text, "\r\n")) {
    refuse(400);
    return length;
  }
  text.remove_suffix(2);
  if (text.find('\r') != absl::string_view::npos) {
    refuse(400);
    return length;
  }
  on_line(text);
  return length;
}

void HttpReader::on_line(absl::string_view line) {
  switch (part_) {
    case Part::kLine:
      return on_request_line(line);
    case Part::kHeader:
      return line.empty() ? on_head() : on_header(line);
    case Part::kChunkSize:
      return on_chunk_size(line);
    case Part::kChunkEnd:
      if (!line.empty()) return refuse(400);
      part_ = Part::kChunkSize;
      return;
    case Part::kTrailer:  // ignored
      if (line.empty()) state_ = State::kWhole;
      return;
    case Part::kSized:
    case Part::kChunk:
      return;
  }
}

void HttpReader::on_request_line(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || words[0].size() > kMaxMethod || !is_token(words[0]) ||
      !is_target(words[1])) {
    return refuse(400);
  }
  if (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0") {
    return refuse(absl::StartsWith(words[2], "HTTP/") ? 505 : 400);
  }
  message_.method = std::string(words[0]);
  message_.path = std::string(words[1].substr(0, words[1].find('?')));
  message_.in_chunks = words[2] == "HTTP/1.1";
  part_ = Part::kHeader;
}

void HttpReader::on_header(absl::string_view line) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos || !is_token(line.substr(0, colon))) return refuse(400);
  const absl::string_view value = trimmed(line.substr(colon + 1));
  if (!is_value(value)) return refuse(400);
  if (message_.headers.size() >= kMaxHeaders) return refuse(431);
  message_.headers.emplace_back(absl::AsciiStrToLower(line.substr(0, colon)), std::string(value));
}

// All headers have been read. Determines the length of the body.
void HttpReader::on_head() {
  const auto count = [this](absl::string_view name) {
    return std::count_if(message_.headers.begin(), message_.headers.end(),
                         [&](const auto& header) { return header.first == name; });
  };
  const auto lengths = count("content-length");
  const auto codings = count("transfer-encoding");
  if (lengths + codings > 1 || count("host") > 1) return refuse(400);
  if (message_.in_chunks && count("host") == 0) return refuse(400);
  const std::string connection = message_.header("connection");
  message_.keep_alive = message_.in_chunks && !has_word(connection, "close");
  const bool expects = absl::EqualsIgnoreCase(message_.header("expect"), "100-continue");
  if (!expects && count("expect") > 0) return refuse(417);
  expects_ = expects && message_.in_chunks;  // HTTP/1.0 has no "100 Continue"
  if (codings == 1) {
    if (!message_.in_chunks) return refuse(400);
    if (!absl::EqualsIgnoreCase(message_.header("transfer-encoding"), "chunked")) {
      return refuse(501);
    }
    part_ = Part::kChunkSize;
    state_ = State::kHeadEnd;
    return;
  }
  if (lengths == 1) {
    const std::string length = message_.header("content-length");
    if (!all_digits(length)) return refuse(400);
    if (!absl::SimpleAtoi(length, &left_) || left_ > limits_.body_bytes) return refuse(413);
  }
  part_ = Part::kSized;
  state_ = State::kHeadEnd;
}

void HttpReader::on_chunk_size(absl::string_view line) {
  const absl::string_view size = line.substr(0, line.find(';'));
  const absl::string_view digits = trimmed(size);
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit) ||
      digits.data() != size.data() || !is_value(line)) {
    return refuse(400);
  }
  left_ = 0;
  for (const char c : digits) {
    const int digit = absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
    left_ = left_ * 16 + static_cast<size_t>(digit);
    if (left_ + message_.body.size() > limits_.body_bytes) return refuse(413);
  }
  part_ = left_ == 0 ? Part::kTrailer : Part::kChunk;
}

// Reserves memory for `more` bytes of the body: at least doubles, but never exceeds what may
// follow. (std::string would exceed it.)
void HttpReader::grow_body(size_t more) {
  std::string& body = message_.body;
  const size_t size = body.size() + more;
  if (size <= body.capacity()) return;
  const size_t most = part_ == Part::kSized ? body.size() + left_ : limits_.body_bytes;
  std::string grown;
  grown.reserve(std::min(most, 2 * size));
  grown.append(body);
  body.swap(grown);
}

size_t HttpReader::read_body(absl::string_view bytes) {
  const size_t length = std::min(left_, bytes.size());
  grow_body(length);
  message_.body.append(bytes.data(), length);
  left_ -= length;
  if (left_ > 0) return length;
  if (part_ == Part::kSized) {
    state_ = State::kWhole;
  } else {
    part_ = Part::kChunkEnd;
  }
  return length;
}

}  // namespace tandem
