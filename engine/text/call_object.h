// CallObject: reads a tool call that is one JSON object, a byte at a time.
//
//   {"name": "get_weather", "arguments": {"city": "Paris"}}
//   {"type": "function", "function": {"name": "get_weather", "parameters": {"city": "Paris"}}}
//
// Members may come in any order. The arguments are an object, an object in a string, or null.
#pragma once

#include <cstdint>
#include <string>

#include "engine/text/json_value.h"

namespace tandem {

class CallObject {
 public:
  enum class Result : uint8_t { kMore, kDone, kInvalid };

  // strict: members other than those of a call are invalid, so that other JSON is recognized early;
  // and the arguments are required. Else they are skipped, and missing arguments are {}.
  explicit CallObject(bool strict) : strict_(strict) {}

  // Reads the next byte, from the opening brace on.
  Result push(char c);

  // The name is known, and the arguments have begun.
  bool begun() const { return named_ && has_arguments_; }
  const std::string& name() const { return name_; }
  bool named() const { return named_; }
  // The arguments since the last call, as JSON. After kDone: the rest of a JSON object.
  std::string take_arguments();

 private:
  enum class State : uint8_t { kOpen, kFirstKey, kKey, kInKey, kColon, kValue, kInValue, kAfter };
  enum class Member : uint8_t { kName, kArguments, kWrapped, kFunctionName, kOther };

  Result fail() const { return Result::kInvalid; }
  bool begin_value(char c);
  bool end_value();
  Result close();

  const bool strict_;
  State state_ = State::kOpen;
  bool wrapped_ = false;  // inside the object "function"
  Member member_ = Member::kOther;
  JsonValue value_;
  std::string raw_;        // of the key or value, unless the arguments are streamed
  bool streamed_ = false;  // the value is the object of the arguments
  std::string name_;
  bool named_ = false;
  std::string arguments_;
  bool has_arguments_ = false;
};

// The text of a JSON string. Unpaired surrogates become U+FFFD. REQUIRES: `json` is a JSON string.
std::string unescape_json_string(const std::string& json);

}  // namespace tandem
