#include "engine/text/python_call.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxNesting = 32;

bool is_letter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// A recursive-descent parser. Each function returns false if the text is not what it reads.
class PythonParser {
 public:
  explicit PythonParser(std::string_view code) : rest_(code) {}

  bool calls(std::vector<PythonCall>* out) {
    skip();
    while (!rest_.empty()) {
      if (!statement(out)) return false;
      skip_blanks();
      const bool separated = rest_.empty() || rest_[0] == '\n' || rest_[0] == ';';
      if (!separated) return false;
      while (!rest_.empty() && (take(';') || take_space())) {
      }
    }
    return !out->empty();
  }

 private:
  bool take(char c) {
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take_space() {
    if (rest_.empty() || !absl::ascii_isspace(static_cast<unsigned char>(rest_[0]))) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void skip() {
    while (take_space()) {
    }
  }
  void skip_blanks() {
    while (take(' ') || take('\t') || take('\r')) {
    }
  }
  bool punctuation(char c) {
    skip();
    return take(c);
  }

  bool statement(std::vector<PythonCall>* out) {
    if (!take('[')) return call(out, /*may_print=*/true);
    do {
      skip();
      if (!call(out, /*may_print=*/false)) return false;
    } while (punctuation(','));
    return punctuation(']');
  }

  std::string identifier(bool dots) {
    size_t n = 0;
    while (n < rest_.size() && (is_letter(rest_[n]) || (n > 0 && is_digit(rest_[n])) ||
                                (n > 0 && dots && rest_[n] == '.'))) {
      ++n;
    }
    std::string name(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return name;
  }

  bool call(std::vector<PythonCall>* out, bool may_print) {
    PythonCall call;
    call.name = identifier(/*dots=*/true);
    if (call.name.empty() || !punctuation('(')) return false;
    skip();
    if (may_print && call.name == "print") {
      return this->call(out, /*may_print=*/false) && punctuation(')');
    }
    Json arguments = Json::object();
    while (!take(')')) {
      const std::string name = identifier(/*dots=*/false);
      Json value;
      if (name.empty() || arguments.contains(name) || !punctuation('=') || !literal(&value, 0)) {
        return false;
      }
      arguments[name] = std::move(value);
      skip();
      if (take(',')) {
        skip();
      } else if (rest_.empty() || rest_[0] != ')') {
        return false;
      }
    }
    call.arguments = arguments.dump();
    out->push_back(std::move(call));
    return true;
  }

  bool literal(Json* out, int nesting) {
    skip();
    if (rest_.empty() || nesting > kMaxNesting) return false;
    const char c = rest_[0];
    if (c == '"' || c == '\'') return string(out);
    if (c == '[') return list(']', out, nesting);
    if (c == '(') return list(')', out, nesting);
    if (c == '{') return dict(out, nesting);
    if (is_digit(c) || c == '-' || c == '.') return number(out);
    const std::string name = identifier(/*dots=*/false);
    if (name == "True" || name == "true") {
      *out = true;
    } else if (name == "False" || name == "false") {
      *out = false;
    } else if (name == "None" || name == "null") {
      *out = nullptr;
    } else {
      return false;
    }
    return true;
  }

  bool list(char end, Json* out, int nesting) {
    rest_.remove_prefix(1);
    *out = Json::array();
    while (!punctuation(end)) {
      Json value;
      if (!literal(&value, nesting + 1)) return false;
      out->push_back(std::move(value));
      if (!punctuation(',')) return punctuation(end);
    }
    return true;
  }

  bool dict(Json* out, int nesting) {
    rest_.remove_prefix(1);
    *out = Json::object();
    while (!punctuation('}')) {
      Json key, value;
      if (!literal(&key, nesting + 1) || !key.is_string() || !punctuation(':') ||
          !literal(&value, nesting + 1)) {
        return false;
      }
      (*out)[key.get<std::string>()] = std::move(value);
      if (!punctuation(',')) return punctuation('}');
    }
    return true;
  }

  bool number(Json* out) {
    size_t n = 0;
    while (n < rest_.size() && (is_digit(rest_[n]) || is_letter(rest_[n]) ||
                                std::string_view("+-.").find(rest_[n]) != std::string_view::npos)) {
      ++n;
    }
    const std::string_view text = rest_.substr(0, n);
    rest_.remove_prefix(n);
    // JSON's numbers keep their spelling's type: 1 and 1.0 differ.
    *out = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    return out->is_number();
  }

  bool string(Json* out) {
    const char quote = rest_[0];
    rest_.remove_prefix(1);
    std::string text;
    while (!rest_.empty() && rest_[0] != quote) {
      if (!take('\\')) {
        text.push_back(rest_[0]);
        rest_.remove_prefix(1);
      } else if (!escape(&text)) {
        return false;
      }
    }
    *out = text;
    return take(quote);
  }

  bool escape(std::string* out) {
    static constexpr std::string_view kNames = "ntr\\'\"";
    static constexpr std::string_view kValues = "\n\t\r\\'\"";
    if (rest_.empty()) return false;
    const size_t at = kNames.find(rest_[0]);
    if (at == std::string_view::npos) return false;
    out->push_back(kValues[at]);
    rest_.remove_prefix(1);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<std::vector<PythonCall>> parse_python_calls(std::string_view code) {
  std::vector<PythonCall> calls;
  if (!PythonParser(code).calls(&calls)) return std::nullopt;
  return calls;
}

}  // namespace tandem
