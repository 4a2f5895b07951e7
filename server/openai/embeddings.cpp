#include "server/openai/embeddings.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"
#include "server/openai/field_table.h"
#include "server/openai/fields.h"
#include "server/openai/tokens.h"
#include "server/openai/translation_parts.h"

namespace tandem::openai {
namespace {

constexpr char kInputs[] = "a string, a list of token ids, or a list of these";

// False for another type than a string or a list of token ids.
bool input_from(absl::string_view value, v1::EmbedInput* out) {
  if (kind_of(value) == JsonKind::kString) {
    out->set_text(string_of(value));
    return true;
  }
  if (kind_of(value) != JsonKind::kArray) return false;
  for (const absl::string_view element : elements_of(value)) {
    int32_t id = 0;
    if (kind_of(element) != JsonKind::kNumber || !absl::SimpleAtoi(element, &id)) return false;
    out->mutable_token_ids()->add_ids(id);
  }
  return true;
}

void inputs_from(Fields* in, v1::EmbedRequest* out, Violations* wrong) {
  const auto input = in->any("input");
  if (!input.has_value()) return wrong->add(out_of_range("input", "none", kInputs));
  std::vector<absl::string_view> inputs = {*input};
  if (kind_of(*input) == JsonKind::kArray) {
    std::vector<absl::string_view> elements = elements_of(*input);
    if (elements.empty() || kind_of(elements[0]) != JsonKind::kNumber) inputs = std::move(elements);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (input_from(inputs[i], out->add_inputs())) continue;
    const std::string path = inputs.size() > 1 ? absl::StrCat("input[", i, "]") : "input";
    return wrong->add(out_of_range(path, kind_name(kind_of(inputs[i])), kInputs));
  }
}

void documents_from(Fields* in, v1::RerankRequest* out, Violations* wrong) {
  for (const absl::string_view document : in->array("documents")) {
    const std::string path = absl::StrCat("documents[", out->documents_size(), "]");
    if (kind_of(document) == JsonKind::kString) {
      out->add_documents(string_of(document));
    } else if (kind_of(document) == JsonKind::kObject) {
      Fields object(document, path + ".", wrong);
      out->add_documents(object.string("text").value_or(""));
      object.end();
    } else {
      return wrong->add(
          out_of_range(path, kind_name(kind_of(document)), "a string or an object {text}"));
    }
  }
}

// The shortest text that reads back as the same number.
void append_number(float value, std::string* out) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out->append(digits.data(), static_cast<size_t>(end - digits.data()));
}

std::string vector_json(const v1::Embedding& embedding) {
  std::string out = "[";
  for (const float value : embedding.values()) {
    if (out.size() > 1) out += ',';
    append_number(value, &out);
  }
  return out + "]";
}

std::string vector_base64(const v1::Embedding& embedding) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(float) * static_cast<size_t>(embedding.values_size()), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), embedding.values().data(), bytes.size());
  return json_string(absl::Base64Escape(bytes));
}

std::string usage_json(const v1::Usage& usage) {
  return absl::StrCat("{\"prompt_tokens\":", usage.prompt_tokens(),
                      ",\"total_tokens\":", usage.prompt_tokens(), "}");
}

}  // namespace

absl::StatusOr<EmbeddingsRequest> embeddings_from(const std::string& body) {
  TANDEM_RETURN_IF_ERROR(check_any_json_object(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  EmbeddingsRequest out;
  v1::EmbedRequest& message = out.message;
  message.set_model(in.string("model").value_or(""));
  inputs_from(&in, &message, &wrong);
  const std::string format = in.string("encoding_format").value_or("float");
  out.base64 = format == "base64";
  if (!out.base64 && format != "float") {
    wrong.add(out_of_range("encoding_format", quote_value(format), "float, base64"));
  }
  if (const auto x = in.integer("dimensions")) message.set_dimensions(*x);
  if (const auto x = in.boolean("normalize")) message.set_normalize(*x);
  if (const auto x = in.boolean("add_special_tokens")) message.set_add_special_tokens(*x);
  if (const auto x = in.string("prefix")) message.set_prefix(*x);
  if (const auto x = in.string("prompt_name")) message.set_prompt_name(*x);
  if (const auto x = in.integer("priority")) message.set_priority(*x);
  translate_fields(kEmbeddings, &in, [](absl::string_view, absl::string_view) {}, &wrong);
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

absl::StatusOr<v1::RerankRequest> rerank_from(const std::string& body) {
  TANDEM_RETURN_IF_ERROR(check_any_json_object(body));
  Violations wrong;
  Fields in(body, "", &wrong);
  v1::RerankRequest out;
  out.set_model(in.string("model").value_or(""));
  out.set_query(in.string("query").value_or(""));
  documents_from(&in, &out, &wrong);
  if (const auto x = in.integer("top_n")) out.set_top_n(*x);
  if (const auto x = in.boolean("return_documents")) out.set_return_documents(*x);
  if (const auto x = in.string("instruction")) out.set_instruction(*x);
  if (const auto x = in.integer("priority")) out.set_priority(*x);
  translate_fields(kRerank, &in, [](absl::string_view, absl::string_view) {}, &wrong);
  in.end();
  TANDEM_RETURN_IF_ERROR(wrong.status());
  return out;
}

std::string embeddings_json(const v1::EmbedResponse& response, const std::string& model,
                            bool base64) {
  JsonWriter data('[');
  for (int i = 0; i < response.embeddings_size(); ++i) {
    const v1::Embedding& embedding = response.embeddings(i);
    data.add(absl::StrCat("{\"object\":\"embedding\",\"index\":", i, ",\"embedding\":",
                          base64 ? vector_base64(embedding) : vector_json(embedding), "}"));
  }
  return absl::StrCat("{\"object\":\"list\",\"data\":", data.text(),
                      ",\"model\":", json_string(model),
                      ",\"usage\":", usage_json(response.usage()), "}");
}

std::string rerank_json(const v1::RerankResponse& response, const std::string& model,
                        bool documents) {
  JsonWriter results('[');
  for (const v1::RerankResult& result : response.results()) {
    results.add(absl::StrCat(
        "{\"index\":", result.index(), ",\"relevance_score\":", result.relevance_score(),
        documents ? absl::StrCat(",\"document\":{\"text\":", json_string(result.document()), "}")
                  : "",
        "}"));
  }
  return absl::StrCat("{\"id\":", json_string(response.request_id()),
                      ",\"model\":", json_string(model), ",\"results\":", results.text(),
                      ",\"usage\":", usage_json(response.usage()), "}");
}

}  // namespace tandem::openai
