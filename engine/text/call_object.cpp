#include "engine/text/call_object.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace tandem {
namespace {

bool is_skipped(const std::string& key) {
  return key == "type" || key == "id" || key == "index" || key == "call_id";
}

}  // namespace

std::string unescape_json_string(const std::string& json) {
  const auto value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string CallObject::take_arguments() { return std::exchange(arguments_, {}); }

CallObject::Result CallObject::push(char c) {
  if (state_ == State::kInValue) {
    std::string& out = streamed_ ? arguments_ : raw_;
    switch (value_.push(c, &out)) {
      case JsonValue::Result::kMore:
        return Result::kMore;
      case JsonValue::Result::kDone:
        state_ = State::kAfter;
        return end_value() ? Result::kMore : fail();
      case JsonValue::Result::kInvalid:
        return fail();
      case JsonValue::Result::kEnded:
        state_ = State::kAfter;
        if (!end_value()) return fail();
        break;  // the byte follows the value
    }
  }
  if (state_ == State::kInKey) {
    const JsonValue::Result read = value_.push(c, &raw_);
    if (read == JsonValue::Result::kMore) return Result::kMore;
    state_ = State::kColon;
    return read == JsonValue::Result::kDone ? Result::kMore : fail();
  }
  if (is_json_space(c)) return Result::kMore;
  switch (state_) {
    case State::kOpen:
      state_ = State::kFirstKey;
      return c == '{' ? Result::kMore : fail();
    case State::kFirstKey:
      if (c == '}') return close();
      [[fallthrough]];
    case State::kKey:
      if (c != '"') return fail();
      state_ = State::kInKey;
      value_ = JsonValue();
      raw_.clear();
      value_.push(c, &raw_);
      return Result::kMore;
    case State::kColon:
      state_ = State::kValue;
      return c == ':' ? Result::kMore : fail();
    case State::kValue:
      return begin_value(c) ? Result::kMore : fail();
    case State::kAfter:
      if (c == ',') {
        state_ = State::kKey;
        return Result::kMore;
      }
      return c == '}' ? close() : fail();
    default:
      return fail();
  }
}

bool CallObject::begin_value(char c) {
  const std::string key = unescape_json_string(raw_);
  member_ = Member::kOther;
  if (key == "name") member_ = Member::kName;
  if (key == "arguments" || key == "parameters") member_ = Member::kArguments;
  if (key == "function" && !wrapped_) {
    member_ = c == '{' ? Member::kWrapped : Member::kFunctionName;
  }
  switch (member_) {
    case Member::kWrapped:
      if (named_ || has_arguments_) return false;
      wrapped_ = true;
      state_ = State::kFirstKey;
      return true;
    case Member::kName:
    case Member::kFunctionName:
      if (named_ || c != '"') return false;
      break;
    case Member::kArguments:
      if (has_arguments_ || (c != '{' && c != '"' && c != 'n')) return false;
      break;
    case Member::kOther:
      if (strict_ && !is_skipped(key)) return false;
      break;
  }
  streamed_ = member_ == Member::kArguments && c == '{';
  if (streamed_) has_arguments_ = true;
  state_ = State::kInValue;
  value_ = JsonValue();
  raw_.clear();
  return value_.push(c, streamed_ ? &arguments_ : &raw_) == JsonValue::Result::kMore;
}

// The value has ended; its text is in raw_ unless it was streamed.
bool CallObject::end_value() {
  switch (member_) {
    case Member::kName:
    case Member::kFunctionName:
      name_ = unescape_json_string(raw_);
      named_ = true;
      return !name_.empty();
    case Member::kArguments: {
      if (streamed_) return true;
      has_arguments_ = true;
      if (raw_ == "null") {
        arguments_ = "{}";
        return true;
      }
      const std::string text = unescape_json_string(raw_);
      JsonValue object;
      JsonValue::Result read = JsonValue::Result::kMore;
      for (const char c : text) {
        if (read == JsonValue::Result::kDone && is_json_space(c)) continue;
        if (read != JsonValue::Result::kMore) return false;
        read = object.push(c, &arguments_);
      }
      const size_t first = text.find_first_not_of(" \n\r\t");
      if (first == std::string::npos) arguments_ = "{}";
      return first == std::string::npos || (text[first] == '{' && read == JsonValue::Result::kDone);
    }
    default:
      return true;
  }
}

// After a closing brace.
CallObject::Result CallObject::close() {
  if (std::exchange(wrapped_, false)) {
    state_ = State::kAfter;
    return Result::kMore;
  }
  if (!named_ || (strict_ && !has_arguments_)) return fail();
  if (!has_arguments_) arguments_ = "{}";
  has_arguments_ = true;
  return Result::kDone;
}

}  // namespace tandem
