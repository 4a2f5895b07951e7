// JsonValue: reads one JSON value (RFC 8259), a byte at a time, without building it.
//
// Control characters in strings are accepted, because models write raw line breaks. They are
// escaped in the output, so the output is valid JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

// Whitespace between JSON tokens.
inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

class JsonValue {
 public:
  enum class Result : uint8_t {
    kMore,     // the byte belongs to the value, which continues
    kDone,     // the byte ends the value
    kEnded,    // the value ended before the byte (numbers only)
    kInvalid,  // not JSON, or nested deeper than kMaxDepth
  };
  static constexpr size_t kMaxDepth = 64;

  // Reads a byte. A byte that belongs to the value is appended to `out`, in its valid form.
  // REQUIRES: the value has not ended.
  Result push(char c, std::string* out);

  // Is the next byte inside a string?
  bool in_string() const {
    return state_ == State::kString || state_ == State::kEscape || state_ == State::kHex;
  }

 private:
  enum class State : uint8_t {
    kValue,       // a value
    kFirstValue,  // a value or ]
    kFirstKey,    // a key or }
    kKey,         // a key
    kColon,       // :
    kAfter,       // , or the end of the array or object
    kString,
    kEscape,   // after a backslash
    kHex,      // the digits of \uXXXX
    kLiteral,  // the rest of true, false or null
    kMinus,    // of numbers: after -
    kZero,     // after a leading 0
    kDigits,   // of the integer part
    kPoint,    // after the point
    kFraction,
    kE,        // after e
    kESign,    // after e+ or e-
    kEDigits,  // of the exponent
  };

  bool valid(char c);  // reads a byte that is not the end of a number
  bool value(char c);  // reads the first byte of a value
  bool number(char c);
  bool number_may_end() const;
  void end_value();

  State state_ = State::kValue;
  bool is_key_ = false;     // the string is a key
  bool done_ = false;       // the outermost value has ended
  int digits_left_ = 0;     // kHex
  const char* rest_ = "";   // kLiteral
  std::vector<char> open_;  // '{' and '[' that are not closed
};

}  // namespace tandem
