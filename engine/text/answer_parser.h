// AnswerParser: splits the text of an answer into content, reasoning and tool calls, as it arrives.
//
// Text that may still become a call or a tag is held back. So the parts of an answer do not depend
// on how its text is split into pieces. Everything else is passed on at once; arguments of a call
// too, as soon as its name is known.
//
// A call that breaks off or is no valid JSON is text: no part of an answer is lost. If parts of it
// were passed on, its last part is `broken`, and its whole text follows as content. Whitespace next
// to calls and reasoning is dropped.
//
// The formats are those of tool_format.h. In addition, a JSON object at the start of a line, also
// in a fence (```json), is a call in the formats hermes, llama3 and gemma, if it names a tool of
// the request and has no members but those of a call. Qwen2.5-Coder writes such calls.
//
// Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/call_object.h"
#include "engine/text/json_value.h"
#include "engine/text/tool_format.h"

namespace tandem {

// What to recognize.
struct AnswerSyntax {
  ToolFormat tools = ToolFormat::kNone;  // kNone: no calls
  std::vector<std::string> names;        // the tools of the request
  bool parallel = true;                  // false: calls behind the first are dropped
  ReasoningTags reasoning;
};

// A part of a tool call. Parts with the same index belong together: the first has the name, and the
// arguments are concatenated to a JSON object.
struct CallPart {
  int index = 0;          // of the call in the answer
  std::string id;         // in the first part only; the parser leaves it empty
  std::string name;       // in the first part only
  std::string arguments;  // JSON text
  bool broken = false;    // the call is invalid; its text follows as content
};

struct AnswerParts {
  std::string text;
  std::string reasoning;
  std::vector<CallPart> calls;  // in order
};

class AnswerParser {
 public:
  // `in_reasoning`: the prompt ends with the opening tag of the reasoning.
  AnswerParser(AnswerSyntax syntax, bool in_reasoning);

  // Reads the next piece of text (valid UTF-8) and appends what is decided to `out`.
  void push(std::string_view text, AnswerParts* out);
  // Ends the answer and appends everything that is held. `cut`: by a limit, not by the model. Then
  // a call whose parts were passed on stays incomplete.
  void finish(bool cut, AnswerParts* out);

  // The block of reasoning has begun and not ended.
  bool in_reasoning() const { return state_ == State::kReasoning; }
  // Complete calls so far.
  int complete_calls() const { return complete_; }

 private:
  enum class State : uint8_t {
    kStart,      // before the opening tag of the reasoning
    kReasoning,  // before its closing tag
    kText,
    kFence,       // in the first line of a fence
    kBeforeCall,  // behind an opening, before [ or {
    kObject,      // in a call that is an object
    kName,        // in a call of the form name[ARGS]{...}
    kArguments,   // of that form
    kInList,      // behind a call of a list
    kAfterCall,   // behind the last call of an opening
    kPython,      // in Python calls
  };
  // An opening: a text that begins calls.
  struct Opening {
    std::string_view text;
    bool at_line_start;  // only there
  };

  void feed(char c);
  void feed_start(char c);
  void feed_reasoning(char c);
  void feed_text(char c);
  void feed_fence(char c);
  void feed_before_call(char c);
  void feed_object(char c);
  void feed_name(char c);
  void feed_arguments(char c);
  void feed_list(char c);
  void feed_after_call(char c);
  void feed_python(char c);

  void pass_text(char c);  // `c` is content
  void open(std::string_view opening);
  void begin_object();
  void begin_call(const std::string& name);
  void add_arguments(std::string_view arguments);
  void end_call();
  void fail();        // what was read since the opening, or the last call, is content
  void fail(char c);  // the same, and `c` follows it
  bool drops_calls() const { return !syntax_.parallel && complete_ > 0; }
  bool is_known(std::string_view name) const;
  std::optional<std::string> name_in(std::string_view header) const;
  bool add_python_calls(std::string_view code);

  const AnswerSyntax syntax_;
  std::vector<Opening> openings_;
  State state_ = State::kText;
  AnswerParts* out_ = nullptr;  // during a call of a public function

  std::string held_;            // kStart, kReasoning, kText: may become a tag or an opening
  std::string space_;           // whitespace, passed on if text follows
  bool drop_space_ = false;     // after calls and reasoning
  bool line_start_ = true;      // of held_
  bool has_reasoning_ = false;  // other than whitespace

  // Of the current opening:
  std::string raw_;         // its text since the last complete call
  bool strict_ = false;     // without a marker: the call must name a known tool
  bool list_ = false;       // [call, call]
  bool fence_ = false;      // in ```
  std::string_view close_;  // its end; may be missing
  std::string tail_;        // kAfterCall: not yet decided
  std::optional<CallObject> object_;
  std::optional<JsonValue> arguments_;
  std::string header_;    // kFence, kName
  int depth_ = 0;         // kPython, outside a fence: open brackets
  char quote_ = 0;        // the same: of the current string; 0: none
  bool escaped_ = false;  // the same: after a backslash
  bool begun_ = false;    // parts of the current call were passed on
  int next_ = 0;          // index of the current or next call
  int complete_ = 0;
};

}  // namespace tandem
