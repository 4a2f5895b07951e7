#include "server/grpc/constraint_from_proto.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using Kind = GrammarSpec::Kind;

GrammarSpec spec_of(Kind kind, const std::string& text) { return {kind, text, ""}; }

// Sizes, not contents: a constraint may hold what a prompt holds.
GrammarSpec text_from(absl::string_view field, Kind kind, const std::string& text,
                      Violations* wrong) {
  if (text.empty()) wrong->add(out_of_range(field, "empty", "at least one character"));
  return spec_of(kind, text);
}

GrammarSpec choice_from(const v1::ChoiceConstraint& choice, Violations* wrong) {
  for (int i = 0; i < choice.texts_size(); ++i) {
    if (!choice.texts(i).empty()) continue;
    wrong->add(
        out_of_range(absl::StrCat("choice.texts[", i, "]"), "empty", "at least one character"));
  }
  if (choice.texts().empty()) wrong->add(out_of_range("choice.texts", "empty", "one text or more"));
  const nlohmann::json texts(
      std::vector<std::string>(choice.texts().begin(), choice.texts().end()));
  return spec_of(Kind::kChoice, texts.dump());
}

}  // namespace

std::optional<GrammarSpec> constraint_from(const v1::GenerateRequest& in, Violations* wrong) {
  std::optional<GrammarSpec> out;
  bool json = false;
  switch (in.constraint_case()) {
    case v1::GenerateRequest::CONSTRAINT_NOT_SET:
      break;
    case v1::GenerateRequest::kJsonSchema:
      out = text_from("json_schema", Kind::kJsonSchema, in.json_schema(), wrong);
      json = true;
      break;
    case v1::GenerateRequest::kJsonObject:
      out = spec_of(Kind::kJsonObject, "");
      json = true;
      break;
    case v1::GenerateRequest::kRegex:
      out = text_from("regex", Kind::kRegex, in.regex(), wrong);
      break;
    case v1::GenerateRequest::kChoice:
      out = choice_from(in.choice(), wrong);
      break;
    case v1::GenerateRequest::kGrammar:
      out = text_from("grammar", Kind::kGrammar, in.grammar(), wrong);
      break;
    case v1::GenerateRequest::kStructuralTag:
      out = text_from("structural_tag", Kind::kStructuralTag, in.structural_tag(), wrong);
      json = true;
      break;
  }
  if (!in.has_whitespace_pattern()) return out;
  if (json) {
    out->whitespace_pattern = in.whitespace_pattern();
  } else {
    wrong->add(out_of_range("whitespace_pattern",
                            absl::StrCat(in.whitespace_pattern().size(), " bytes"),
                            "unset without json_schema, json_object or structural_tag"));
  }
  return out;
}

}  // namespace tandem
