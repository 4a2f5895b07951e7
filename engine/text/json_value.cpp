#include "engine/text/json_value.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace tandem {
namespace {

// The escape of a control character.
std::string escape_of(char c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return absl::StrFormat("\\u%04x", static_cast<unsigned char>(c));
  }
}

}  // namespace

JsonValue::Result JsonValue::push(char c, std::string* out) {
  if (state_ >= State::kMinus && !number(c)) {
    if (!number_may_end()) return Result::kInvalid;
    if (open_.empty()) return Result::kEnded;
    end_value();
    if (!valid(c)) return Result::kInvalid;
  } else if (state_ < State::kMinus) {
    const bool control = state_ == State::kString && static_cast<unsigned char>(c) < 0x20;
    if (control) {
      *out += escape_of(c);
      return Result::kMore;
    }
    if (!valid(c)) return Result::kInvalid;
  }
  out->push_back(c);
  return done_ ? Result::kDone : Result::kMore;
}

bool JsonValue::valid(char c) {
  switch (state_) {
    case State::kString:
      if (c == '\\') {
        state_ = State::kEscape;
      } else if (c == '"' && is_key_) {
        state_ = State::kColon;
      } else if (c == '"') {
        end_value();
      }
      return true;
    case State::kEscape:
      state_ = c == 'u' ? State::kHex : State::kString;
      digits_left_ = 4;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
    case State::kHex:
      if (--digits_left_ == 0) state_ = State::kString;
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    case State::kLiteral:
      if (c != *rest_++) return false;
      if (*rest_ == '\0') end_value();
      return true;
    default:
      break;
  }
  if (is_json_space(c)) return true;
  switch (state_) {
    case State::kValue:
      return value(c);
    case State::kFirstValue:
      if (c != ']') return value(c);
      break;
    case State::kFirstKey:
    case State::kKey:
      if (c == '"') {
        state_ = State::kString;
        is_key_ = true;
        return true;
      }
      if (c != '}' || state_ == State::kKey) return false;
      break;
    case State::kColon:
      state_ = State::kValue;
      return c == ':';
    case State::kAfter:
      if (c == ',') {
        state_ = open_.back() == '{' ? State::kKey : State::kValue;
        return true;
      }
      if (c != (open_.back() == '{' ? '}' : ']')) return false;
      break;
    default:
      return false;
  }
  open_.pop_back();
  end_value();
  return true;
}

bool JsonValue::value(char c) {
  switch (c) {
    case '{':
    case '[':
      if (open_.size() == kMaxDepth) return false;
      open_.push_back(c);
      state_ = c == '{' ? State::kFirstKey : State::kFirstValue;
      return true;
    case '"':
      state_ = State::kString;
      is_key_ = false;
      return true;
    case 't':
      rest_ = "rue";
      break;
    case 'f':
      rest_ = "alse";
      break;
    case 'n':
      rest_ = "ull";
      break;
    case '-':
      state_ = State::kMinus;
      return true;
    default:
      state_ = c == '0' ? State::kZero : State::kDigits;
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
  }
  state_ = State::kLiteral;
  return true;
}

// Reads a byte of a number. False: the byte is none.
bool JsonValue::number(char c) {
  switch (state_) {
    case State::kMinus:
      if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
      state_ = c == '0' ? State::kZero : State::kDigits;
      return true;
    case State::kDigits:
      if (absl::ascii_isdigit(static_cast<unsigned char>(c))) return true;
      [[fallthrough]];
    case State::kZero:
      if (c == '.') {
        state_ = State::kPoint;
        return true;
      }
      break;
    case State::kPoint:
    case State::kFraction:
      if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
        state_ = State::kFraction;
        return true;
      }
      if (state_ == State::kPoint) return false;
      break;
    case State::kE:
      if (c == '+' || c == '-') {
        state_ = State::kESign;
        return true;
      }
      [[fallthrough]];
    case State::kESign:
    case State::kEDigits:
      if (absl::ascii_isdigit(static_cast<unsigned char>(c))) state_ = State::kEDigits;
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    default:
      return false;
  }
  if (c != 'e' && c != 'E') return false;
  state_ = State::kE;
  return true;
}

bool JsonValue::number_may_end() const {
  return state_ == State::kZero || state_ == State::kDigits || state_ == State::kFraction ||
         state_ == State::kEDigits;
}

void JsonValue::end_value() {
  state_ = State::kAfter;
  done_ = open_.empty();
}

}  // namespace tandem
