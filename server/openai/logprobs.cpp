#include "server/openai/logprobs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

constexpr double kLeastLogprob = -9999.0;  // OpenAI's: JSON has no infinity

void append_comma(std::string* list) {
  if (!list->empty()) list->push_back(',');
}

template <class Token>  // or TopLogprob
void append_members(const Token& token, std::string* out) {
  out->append("\"token\":");
  append_json_string(token.text(), out);
  out->append(",\"logprob\":");
  append_logprob(token.logprob(), out);
  out->append(",\"bytes\":");
  append_bytes(token.bytes(), out);
}

// The name of a token in completions: its text, or its bytes if they are not valid text.
template <class Token>
std::string token_name(const Token& token) {
  if (token.text().find("\xEF\xBF\xBD") == std::string::npos) return token.text();
  std::string out = "bytes:";
  for (const char c : token.bytes()) {
    absl::StrAppend(&out, "\\x", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  }
  return out;
}

int64_t characters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

}  // namespace

void append_logprob(float logprob, std::string* out) {
  const auto value = static_cast<double>(logprob);
  *out += nlohmann::json(std::isfinite(value) ? value : kLeastLogprob).dump();
}

void append_bytes(const std::string& bytes, std::string* out) {
  out->push_back('[');
  const char* comma = "";
  for (const char c : bytes) {
    absl::StrAppend(out, comma, static_cast<int>(static_cast<uint8_t>(c)));
    comma = ",";
  }
  out->push_back(']');
}

void Logprobs::add(const v1::Token& token) {
  kind_ == Kind::kChat ? add_to_chat(token) : add_to_completion(token);
}

void Logprobs::add_to_chat(const v1::Token& token) {
  std::string& content = lists_[0];
  append_comma(&content);
  content.push_back('{');
  append_members(token, &content);
  content.append(",\"top_logprobs\":[");
  const char* comma = "";
  for (const v1::TopLogprob& top : token.top_logprobs()) {
    absl::StrAppend(&content, comma, "{");
    append_members(top, &content);
    content.push_back('}');
    comma = ",";
  }
  content.append("]}");
}

void Logprobs::add_to_completion(const v1::Token& token) {
  auto& [names, logprobs, tops, offsets] = lists_;
  for (std::string& list : lists_) append_comma(&list);
  append_json_string(token_name(token), &names);
  if (!token.has_logprob()) {  // the first token of an echoed prompt
    logprobs.append("null");
    tops.append("null");
    absl::StrAppend(&offsets, offset_);
    offset_ += characters(token.bytes());
    return;
  }
  append_logprob(token.logprob(), &logprobs);
  absl::StrAppend(&offsets, offset_);
  offset_ += characters(token.bytes());
  tops.push_back('{');
  std::set<std::string> named;  // two tokens may have one text: the better one stands
  for (const v1::TopLogprob& top : token.top_logprobs()) {
    const std::string name = token_name(top);
    if (!named.insert(name).second) continue;
    if (named.size() > 1) tops.push_back(',');
    append_json_string(name, &tops);
    tops.push_back(':');
    append_logprob(top.logprob(), &tops);
  }
  tops.push_back('}');
}

void Logprobs::append_to(std::string* out) const {
  if (kind_ == Kind::kChat) {
    absl::StrAppend(out, "{\"content\":[", lists_[0], "],\"refusal\":null}");
  } else {
    absl::StrAppend(out, "{\"tokens\":[", lists_[0], "],\"token_logprobs\":[", lists_[1]);
    absl::StrAppend(out, "],\"top_logprobs\":[", lists_[2], "],\"text_offset\":[", lists_[3], "]}");
  }
}

void Logprobs::clear() {
  for (std::string& list : lists_) list.clear();
}

}  // namespace tandem::openai
