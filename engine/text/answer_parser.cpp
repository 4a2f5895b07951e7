#include "engine/text/answer_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "engine/text/python_call.h"

namespace tandem {
namespace {

constexpr std::string_view kFenceMark = "```";
constexpr std::string_view kPythonList = "[";
constexpr std::string_view kBareObject = "{";
constexpr std::string_view kFunctools = "functools";
constexpr size_t kMaxFenceName = 16;
constexpr size_t kMaxHeader = 256;

bool is_space(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }
bool is_name(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("_-./").find(c) != std::string_view::npos;
}

std::string_view without_leading_space(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return text;
}
std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

AnswerParser::AnswerParser(AnswerSyntax syntax, bool in_reasoning) : syntax_(std::move(syntax)) {
  switch (syntax_.tools) {
    case ToolFormat::kNone:
      break;
    case ToolFormat::kHermes:
      openings_ = {{"<tool_call>", false}, {kBareObject, true}, {kFenceMark, true}};
      break;
    case ToolFormat::kLlama3:
      openings_ = {{"<|python_tag|>", false}, {kBareObject, true}, {kFenceMark, true}};
      break;
    case ToolFormat::kMistral:
      openings_ = {{"[TOOL_CALLS]", false}};
      break;
    case ToolFormat::kPhi4:
      openings_ = {{"<|tool_call|>", false}, {kFunctools, true}};
      break;
    case ToolFormat::kGemma:
      openings_ = {{kFenceMark, true}, {kBareObject, true}, {kPythonList, true}};
      break;
  }
  if (in_reasoning) {
    state_ = State::kReasoning;
  } else if (syntax_.reasoning.any()) {
    state_ = State::kStart;
  }
}

void AnswerParser::push(std::string_view text, AnswerParts* out) {
  out_ = out;
  for (const char c : text) feed(c);
}

void AnswerParser::feed(char c) {
  switch (state_) {
    case State::kStart:
      return feed_start(c);
    case State::kReasoning:
      return feed_reasoning(c);
    case State::kText:
      return feed_text(c);
    case State::kFence:
      return feed_fence(c);
    case State::kBeforeCall:
      return feed_before_call(c);
    case State::kObject:
      return feed_object(c);
    case State::kName:
      return feed_name(c);
    case State::kArguments:
      return feed_arguments(c);
    case State::kInList:
      return feed_list(c);
    case State::kAfterCall:
      return feed_after_call(c);
    case State::kPython:
      return feed_python(c);
  }
}

void AnswerParser::finish(bool cut, AnswerParts* out) {
  out_ = out;
  switch (state_) {
    case State::kStart:
    case State::kText:
      for (const char c : held_) pass_text(c);
      break;
    case State::kReasoning:
      if (!held_.empty() && has_reasoning_) out_->reasoning += space_;
      out_->reasoning += held_;
      space_.clear();
      break;
    case State::kBeforeCall:
      // Behind a comma of a list only.
      if (list_ && raw_.find_first_not_of(", \t\r\n") == std::string::npos) break;
      fail();
      break;
    case State::kFence:
    case State::kName:
      fail();
      break;
    case State::kObject:
    case State::kArguments:
      if (!begun_ || !cut) {
        fail();
      } else {
        space_.clear();
      }
      break;
    case State::kInList:
    case State::kAfterCall:
      break;  // the end of the opening is missing
    case State::kPython:
      if (!fence_ || !add_python_calls(std::string_view(raw_).substr(raw_.find('\n')))) fail();
      break;
  }
  out_->text += space_;
  space_.clear();
  held_.clear();
}

// --- Reasoning

void AnswerParser::feed_start(char c) {
  held_.push_back(c);
  const std::string_view text = without_leading_space(held_);
  if (text == syntax_.reasoning.open) {
    held_.clear();
    state_ = State::kReasoning;
  } else if (!syntax_.reasoning.open.starts_with(text)) {
    state_ = State::kText;
    for (const char held : std::exchange(held_, {})) feed(held);
  }
}

void AnswerParser::feed_reasoning(char c) {
  held_.push_back(c);
  while (!held_.empty() && !syntax_.reasoning.close.starts_with(held_)) {
    const char first = held_[0];
    held_.erase(0, 1);
    if (is_space(first)) {
      space_.push_back(first);
      continue;
    }
    if (has_reasoning_) out_->reasoning += space_;
    space_.clear();
    has_reasoning_ = true;
    out_->reasoning.push_back(first);
  }
  if (held_ != syntax_.reasoning.close) return;
  held_.clear();
  space_.clear();
  drop_space_ = true;
  line_start_ = true;
  state_ = State::kText;
}

// --- Content

void AnswerParser::pass_text(char c) {
  line_start_ = c == '\n' || (line_start_ && is_space(c));
  if (is_space(c)) {
    if (!drop_space_) space_.push_back(c);
    return;
  }
  out_->text += space_;
  space_.clear();
  drop_space_ = false;
  out_->text.push_back(c);
}

void AnswerParser::feed_text(char c) {
  held_.push_back(c);
  while (!held_.empty()) {
    bool may_open = false;
    for (const Opening& opening : openings_) {
      if (opening.at_line_start && !line_start_) continue;
      if (opening.text == held_) {
        held_.clear();
        return open(opening.text);
      }
      may_open = may_open || opening.text.starts_with(held_);
    }
    if (may_open) return;
    const char first = held_[0];
    held_.erase(0, 1);
    pass_text(first);
  }
}

// --- Openings

void AnswerParser::open(std::string_view opening) {
  raw_ = opening;
  list_ = false;
  fence_ = opening == kFenceMark;
  strict_ = fence_ || opening == kBareObject;
  close_ = {};
  state_ = State::kBeforeCall;
  if (opening == "<tool_call>") close_ = "</tool_call>";
  if (opening == "<|tool_call|>") close_ = "<|/tool_call|>";
  if (fence_) {
    close_ = kFenceMark;
    header_.clear();
    state_ = State::kFence;
  } else if (opening == kBareObject) {
    raw_.clear();
    begin_object();
    feed_object('{');
  } else if (opening == kPythonList) {
    depth_ = 1;
    quote_ = 0;
    escaped_ = false;
    state_ = State::kPython;
  }
}

void AnswerParser::feed_fence(char c) {
  if (c != '\n') {
    if (c == '`' || header_.size() == kMaxFenceName) return fail(c);
    raw_.push_back(c);
    header_.push_back(c);
    return;
  }
  const std::string_view name = without_trailing_space(without_leading_space(header_));
  const bool python = name == "tool_code" && syntax_.tools == ToolFormat::kGemma;
  if (!python && !name.empty() && name != "json" && name != "tool_call") return fail(c);
  raw_.push_back(c);
  state_ = python ? State::kPython : State::kBeforeCall;
}

void AnswerParser::feed_before_call(char c) {
  const bool list_only = syntax_.tools == ToolFormat::kPhi4 && raw_ == kFunctools;
  if (is_space(c)) {
    raw_.push_back(c);
  } else if (c == '{' && !list_only) {
    begin_object();
    feed_object(c);
  } else if (c == '[' && !list_) {
    list_ = true;
    raw_.push_back(c);
  } else if (syntax_.tools == ToolFormat::kMistral && !list_ && is_name(c)) {
    header_.clear();
    state_ = State::kName;
    feed_name(c);
  } else {
    fail(c);
  }
}

void AnswerParser::feed_list(char c) {
  if (c == ']') {
    raw_.clear();
    list_ = false;
    state_ = State::kAfterCall;
    return;
  }
  if (c != ',' && !is_space(c)) return fail(c);
  raw_.push_back(c);
  if (c == ',') state_ = State::kBeforeCall;
}

void AnswerParser::feed_after_call(char c) {
  tail_.push_back(c);
  std::string_view text = without_leading_space(tail_);
  if (!close_.empty() && close_.starts_with(text)) {
    if (text != close_) return;
    tail_.clear();
    state_ = State::kText;
    return;
  }
  const bool separated = syntax_.tools == ToolFormat::kLlama3 && text.starts_with(';');
  if (separated) text.remove_prefix(1);
  text = without_leading_space(text);
  if (text.empty()) return;
  if ((strict_ || separated) && text == kBareObject) {
    raw_ = std::exchange(tail_, {});
    raw_.pop_back();
    begin_object();
    return feed_object(c);
  }
  state_ = State::kText;
  for (const char held : std::exchange(tail_, {})) feed(held);
}

// --- Calls

void AnswerParser::begin_object() {
  object_.emplace(strict_);
  state_ = State::kObject;
}

void AnswerParser::feed_object(char c) {
  const CallObject::Result read = object_->push(c);
  if (read == CallObject::Result::kInvalid) return fail(c);
  raw_.push_back(c);
  if (strict_ && object_->named() && !is_known(object_->name())) return fail();
  if (!object_->begun()) return;
  if (!begun_) begin_call(object_->name());
  add_arguments(object_->take_arguments());
  if (read == CallObject::Result::kDone) end_call();
}

// The name in "name", "name[ARGS]" or "name[CALL_ID]id[ARGS]".
std::optional<std::string> AnswerParser::name_in(std::string_view header) const {
  static constexpr std::string_view kId = "[CALL_ID]", kArgs = "[ARGS]";
  const size_t end = std::min(header.find('['), header.size());
  const std::string_view name = without_trailing_space(header.substr(0, end));
  std::string_view rest = without_trailing_space(header.substr(end));
  if (!std::ranges::all_of(name, is_name)) return std::nullopt;
  if (!rest.empty()) {
    if (!rest.ends_with(kArgs)) return std::nullopt;
    rest.remove_suffix(kArgs.size());
    if (rest.starts_with(kId)) rest.remove_prefix(kId.size());
    if (!std::ranges::all_of(rest, is_name)) return std::nullopt;
  }
  return std::string(name);
}

void AnswerParser::feed_name(char c) {
  if (c == '{') {
    const std::optional<std::string> name = name_in(header_);
    if (!name) return fail(c);
    begin_call(*name);
    arguments_.emplace();
    state_ = State::kArguments;
    return feed_arguments(c);
  }
  const bool in_header = is_name(c) || c == '[' || c == ']' || c == ' ';
  if (!in_header || header_.size() == kMaxHeader) return fail(c);
  // A second opening.
  if (c == '[' && header_.find('[') != std::string::npos && header_.ends_with(']')) {
    return fail(c);
  }
  raw_.push_back(c);
  header_.push_back(c);
}

void AnswerParser::feed_arguments(char c) {
  std::string text;
  const JsonValue::Result read = arguments_->push(c, &text);
  if (read == JsonValue::Result::kInvalid || read == JsonValue::Result::kEnded) return fail(c);
  raw_.push_back(c);
  add_arguments(text);
  if (read == JsonValue::Result::kDone) end_call();
}

void AnswerParser::feed_python(char c) {
  if (!fence_ && quote_ == 0 && depth_ == 1 && c != ']') {
    // Between the calls of a list.
    const bool allowed = is_name(c) || is_space(c) || c == ',' || c == '(';
    if (!allowed) return fail(c);
    if (c == '(') {
      size_t begin = raw_.size();
      while (begin > 0 && is_name(raw_[begin - 1])) --begin;
      if (!is_known(std::string_view(raw_).substr(begin))) return fail(c);
    }
  }
  raw_.push_back(c);
  if (fence_) {
    if (!raw_.ends_with(kFenceMark)) return;
    const size_t begin = raw_.find('\n');
    const size_t size = raw_.size() - kFenceMark.size() - begin;
    if (!add_python_calls(std::string_view(raw_).substr(begin, size))) fail();
    return;
  }
  if (quote_ != 0) {
    if (!escaped_ && c == quote_) quote_ = 0;
    escaped_ = !escaped_ && c == '\\';
    return;
  }
  if (c == '"' || c == '\'') quote_ = c;
  if (c == '(' || c == '[' || c == '{') ++depth_;
  if (c == ')' || c == ']' || c == '}') --depth_;
  if (depth_ == 0 && !add_python_calls(raw_)) fail();
}

bool AnswerParser::add_python_calls(std::string_view code) {
  const auto calls = parse_python_calls(code);
  const bool known = calls.has_value() &&
                     std::ranges::all_of(*calls, [&](const auto& c) { return is_known(c.name); });
  if (!known) return false;
  for (const PythonCall& call : *calls) {
    // Models may put a module before the name.
    const size_t dot = call.name.rfind('.');
    const bool whole = std::ranges::find(syntax_.names, call.name) != syntax_.names.end();
    begin_call(whole || dot == std::string::npos ? call.name : call.name.substr(dot + 1));
    add_arguments(call.arguments);
    end_call();
  }
  state_ = State::kText;
  return true;
}

bool AnswerParser::is_known(std::string_view name) const {
  const auto has = [&](std::string_view text) {
    return std::ranges::find(syntax_.names, text) != syntax_.names.end();
  };
  const size_t dot = name.rfind('.');
  return has(name) || (syntax_.tools == ToolFormat::kGemma && dot != std::string_view::npos &&
                       has(name.substr(dot + 1)));
}

void AnswerParser::begin_call(const std::string& name) {
  begun_ = true;
  if (!drops_calls()) out_->calls.push_back({next_, "", name, "", false});
}

void AnswerParser::add_arguments(std::string_view arguments) {
  if (arguments.empty() || drops_calls()) return;
  const bool same = !out_->calls.empty() && out_->calls.back().index == next_;
  if (!same) out_->calls.push_back({next_, "", "", "", false});
  out_->calls.back().arguments += arguments;
}

void AnswerParser::end_call() {
  if (!drops_calls()) {
    ++next_;
    ++complete_;
  }
  begun_ = false;
  space_.clear();
  drop_space_ = true;
  line_start_ = false;
  raw_.clear();
  tail_.clear();
  state_ = list_ ? State::kInList : State::kAfterCall;
}

void AnswerParser::fail() {
  if (std::exchange(begun_, false) && !drops_calls()) {
    const bool same = !out_->calls.empty() && out_->calls.back().index == next_;
    if (!same) out_->calls.push_back({next_, "", "", "", false});
    out_->calls.back().broken = true;
    ++next_;
  }
  state_ = State::kText;
  for (const char c : std::exchange(raw_, {})) pass_text(c);
}

void AnswerParser::fail(char c) {
  fail();
  feed_text(c);
}

}  // namespace tandem
