#include "server/openai/constraint.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status.h"
#include "server/openai/json_text.h"

namespace tandem::openai {
namespace {

// Writes the constraint, and refuses a second one.
class Constraint {
 public:
  Constraint(v1::GenerateRequest* out, FieldNames* names, Violations* wrong)
      : out_(*out), names_(*names), wrong_(*wrong) {}

  // True: the member `name` is the first constraint. `ours`: the field of GenerateRequest.
  bool first(const std::string& name, const std::string& ours) {
    if (name_.empty() && out_.constraint_case() == v1::GenerateRequest::CONSTRAINT_NOT_SET) {
      name_ = name;
      names_[ours] = name;
      return true;
    }
    const std::string other = name_.empty() ? "the constraint in tandem" : name_;
    wrong_.add(out_of_range(name, "set", absl::StrCat("unset with ", other)));
    return false;
  }

  void schema(const std::string& name, absl::string_view json) {
    if (first(name, "json_schema")) out_.set_json_schema(std::string(json));
  }
  void object(const std::string& name) {
    if (first(name, "json_object")) out_.mutable_json_object();
  }
  void regex(const std::string& name, const std::string& text) {
    if (first(name, "regex")) out_.set_regex(text);
  }
  void grammar(const std::string& name, const std::string& text) {
    if (first(name, "grammar")) out_.set_grammar(text);
  }
  void tag(const std::string& name, absl::string_view json) {
    if (first(name, "structural_tag")) out_.set_structural_tag(std::string(json));
  }
  void choice(const std::string& name, const std::vector<absl::string_view>& texts) {
    if (!first(name, "choice")) return;
    out_.mutable_choice();
    for (const absl::string_view text : texts) {
      if (kind_of(text) != JsonKind::kString) {
        return wrong_.add(out_of_range(name, kind_name(kind_of(text)), "an array of strings"));
      }
      out_.mutable_choice()->add_texts(string_of(text));
    }
  }
  void whitespace(const std::string& name, const std::optional<std::string>& pattern) {
    if (!pattern.has_value()) return;
    out_.set_whitespace_pattern(*pattern);
    names_["whitespace_pattern"] = name;
  }

 private:
  v1::GenerateRequest& out_;
  FieldNames& names_;
  Violations& wrong_;
  std::string name_;
};

// A JSON value, or a string that holds one, as vLLM's clients send.
std::optional<std::string> json_or_text(Fields* in, absl::string_view name, Violations* wrong) {
  const auto value = in->any(name);
  if (!value.has_value()) return std::nullopt;
  switch (kind_of(*value)) {
    case JsonKind::kString:
      return string_of(*value);
    case JsonKind::kObject:
    case JsonKind::kBool:
      return std::string(*value);
    default:
      wrong->add(out_of_range(in->path(name), kind_name(kind_of(*value)), "a JSON schema"));
      return std::nullopt;
  }
}

void response_format_from(Fields* in, Constraint* to, Violations* wrong) {
  const auto format = in->of_kind("response_format", JsonKind::kObject);
  if (!format.has_value()) return;
  Fields fields(*format, "response_format.", wrong);
  const std::string type = fields.string("type").value_or("");
  if (type == "text") return fields.end();
  if (type == "json_object") {
    const auto schema = fields.of_kind("schema", JsonKind::kObject);  // llama.cpp
    if (schema.has_value()) {
      to->schema("response_format", *schema);
    } else {
      to->object("response_format");
    }
    return fields.end();
  }
  if (type == "structural_tag") return to->tag("response_format", *format);
  if (type != "json_schema") {
    fields.rest();
    return wrong->add(out_of_range("response_format.type", "another type",
                                   "text, json_object, json_schema, structural_tag"));
  }
  const auto named = fields.of_kind("json_schema", JsonKind::kObject);
  const auto plain = fields.of_kind("schema", JsonKind::kObject);  // llama.cpp
  fields.end();
  if (!named.has_value()) {
    if (plain.has_value()) return to->schema("response_format", *plain);
    return wrong->add(out_of_range("response_format.json_schema", "none", "an object"));
  }
  Fields of_schema(*named, "response_format.json_schema.", wrong);
  of_schema.ignore("name");
  of_schema.ignore("description");
  of_schema.ignore("strict");  // always
  const auto schema = of_schema.any("schema");
  of_schema.end();
  if (!schema.has_value()) {
    return wrong->add(out_of_range("response_format.json_schema.schema", "none", "a JSON schema"));
  }
  to->schema("response_format", *schema);
}

struct Names {
  absl::string_view json, regex, choice, grammar, whitespace;
};

// The members that vLLM's two interfaces share, by their names in each.
void vllm_from(Fields* in, const std::string& path, const Names& names, Constraint* to,
               Violations* wrong) {
  const auto name = [&](absl::string_view member) { return absl::StrCat(path, member); };
  if (const auto schema = json_or_text(in, names.json, wrong)) {
    to->schema(name(names.json), *schema);
  }
  if (const auto regex = in->string(names.regex)) to->regex(name(names.regex), *regex);
  if (const auto choice = in->of_kind(names.choice, JsonKind::kArray)) {
    to->choice(name(names.choice), elements_of(*choice));
  }
  if (const auto text = in->string(names.grammar)) to->grammar(name(names.grammar), *text);
  to->whitespace(name(names.whitespace), in->string(names.whitespace));
}

void structured_outputs_from(Fields* in, Constraint* to, Violations* wrong) {
  const auto object = in->of_kind("structured_outputs", JsonKind::kObject);
  if (!object.has_value()) return;
  Fields fields(*object, "structured_outputs.", wrong);
  vllm_from(&fields, "structured_outputs.",
            {"json", "regex", "choice", "grammar", "whitespace_pattern"}, to, wrong);
  if (fields.boolean("json_object").value_or(false)) to->object("structured_outputs.json_object");
  if (const auto tag = json_or_text(&fields, "structural_tag", wrong)) {
    to->tag("structured_outputs.structural_tag", *tag);
  }
  fields.end();
}

}  // namespace

void constraint_from(Fields* in, v1::GenerateRequest* out, FieldNames* names, Violations* wrong) {
  Constraint to(out, names, wrong);
  response_format_from(in, &to, wrong);
  structured_outputs_from(in, &to, wrong);
  vllm_from(in, "",
            {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
             "guided_whitespace_pattern"},
            &to, wrong);
  in->ignore("guided_decoding_backend");
  if (const auto schema = json_or_text(in, "json_schema", wrong)) {
    to.schema("json_schema", *schema);
  }
  // llama.cpp's clients send "" for none.
  const std::string grammar = in->string("grammar").value_or("");
  if (!grammar.empty()) to.grammar("grammar", grammar);
}

}  // namespace tandem::openai
