#include "engine/backend/torch/weights/gguf/tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/unigram.h"
#include "engine/backend/torch/weights/gguf/vocabulary.h"
#include "engine/base/quote.h"
#include "engine/base/status.h"

namespace tandem {
namespace {

using nlohmann::json;

// Pre-tokenization before merging.
enum class Words : uint8_t {
  kByteLevel,  // GPT-2's expression, the default of ByteLevel
  kDigits,     // single digits, then kByteLevel
  kFalcon,
  kSplit,  // by a regular expression
};

struct Pre {
  const char* name;  // tokenizer.ggml.pre
  Words words;
  const char* expression;
  bool nfc;
  bool ignore_merges;  // words in the vocabulary are not built by merges
  bool add_bos;        // default
};

constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<Pre, 19> kPres{{
    {"qwen2", Words::kSplit, kQwen2, true, false, false},
    {"deepseek-r1-qwen", Words::kSplit, kQwen2, true, false, false},
    {"llama-bpe", Words::kSplit, kLlama3, false, true, true},
    {"llama3", Words::kSplit, kLlama3, false, true, true},
    {"llama-v3", Words::kSplit, kLlama3, false, true, true},
    {"falcon3", Words::kSplit, kLlama3, false, true, true},
    {"pixtral", Words::kSplit, kLlama3, false, true, true},
    {"tekken", Words::kSplit, kTekken, false, true, true},
    {"gpt-2", Words::kByteLevel, "", false, false, false},
    {"phi-2", Words::kByteLevel, "", false, false, false},
    {"olmo", Words::kByteLevel, "", false, false, false},
    {"smollm", Words::kDigits, "", false, false, false},
    {"starcoder", Words::kDigits, "", false, false, false},
    {"refact", Words::kDigits, "", false, false, false},
    {"command-r", Words::kDigits, "", false, false, false},
    {"codeshell", Words::kDigits, "", false, false, false},
    {"exaone", Words::kDigits, "", false, false, false},
    {"falcon", Words::kFalcon, "", false, false, false},
    {"default", Words::kByteLevel, "", false, false, false},
}};

const Pre* find_pre(GgufFields& fields) {
  const std::string key = absl::StrCat(kGgufTokens, "pre");
  const std::string name = fields.text(key, "default");
  std::string allowed;
  for (const Pre& pre : kPres) {
    if (name == pre.name) return &pre;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", pre.name);
  }
  fields.refuse(key, quote_value(name), allowed);
  return nullptr;
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

json split(json pattern, const char* behavior) {
  return {{"type", "Split"},
          {"pattern", std::move(pattern)},
          {"behavior", behavior},
          {"invert", false}};
}

json words_json(const Pre& pre) {
  const auto digits = [](bool individual) {
    return json{{"type", "Digits"}, {"individual_digits", individual}};
  };
  json all = json::array();
  switch (pre.words) {
    case Words::kByteLevel:
      return byte_level(true);
    case Words::kDigits:
      all = {digits(true), byte_level(true)};
      break;
    case Words::kFalcon:
      all = {{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
             byte_level(true),
             digits(false),
             split({{"Regex", "[0-9][0-9][0-9]"}}, "Isolated")};
      break;
    case Words::kSplit:
      all = {split({{"Regex", pre.expression}}, "Isolated"), byte_level(false)};
      break;
  }
  return {{"type", "Sequence"}, {"pretokenizers", std::move(all)}};
}

using Merge = std::pair<std::string_view, std::string_view>;

// "a b"; neither token contains a space.
std::vector<Merge> read_merges(GgufFields& fields, const GgufVocabulary& vocabulary) {
  std::vector<Merge> merges;
  const std::vector<std::string_view> texts = fields.texts("tokenizer.ggml.merges");
  merges.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t space = texts[i].find(' ', 1);
    const bool two = space != std::string_view::npos && space + 1 < texts[i].size();
    const Merge merge =
        two ? Merge(texts[i].substr(0, space), texts[i].substr(space + 1)) : Merge();
    const bool known =
        two && vocabulary.ids.contains(merge.first) && vocabulary.ids.contains(merge.second) &&
        vocabulary.ids.contains(absl::StrCat(std::string(merge.first), std::string(merge.second)));
    if (!known) {
      fields.refuse(gguf_token_key("merges", i), quote_value({texts[i].data(), texts[i].size()}),
                    "two tokens separated by a space, whose concatenation is a token");
      return {};
    }
    merges.push_back(merge);
  }
  return merges;
}

// Merges implied by a vocabulary with scores: every split of every token into two tokens, ordered
// by the token's score; ties by the length of the halves (longer first), then by id (Transformers'
// generate_merges). by_order: order by id, for Gemma, whose scores are not meaningful.
std::vector<Merge> derive_merges(const GgufVocabulary& vocabulary, const std::vector<float>& scores,
                                 bool by_order) {
  struct Candidate {
    float score;
    int left_length, right_length;  // in characters
    uint32_t token, left, right;
    Merge merge;

    auto rank() const {
      return std::tuple(-score, -left_length, -right_length, token, left, right);
    }
  };
  std::vector<Candidate> all;
  std::vector<size_t> cuts;
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.used(id)) continue;
    const std::string_view token = vocabulary.tokens[id];
    cuts.clear();  // byte offsets of characters
    for (size_t i = 1; i < token.size(); ++i) {
      if ((static_cast<uint8_t>(token[i]) & 0xc0) != 0x80) cuts.push_back(i);
    }
    const int cut_count = static_cast<int>(cuts.size());
    for (int k = 0; k < cut_count; ++k) {
      const size_t cut = cuts[static_cast<size_t>(k)];
      const auto left = vocabulary.ids.find(token.substr(0, cut));
      const auto right = vocabulary.ids.find(token.substr(cut));
      if (left == vocabulary.ids.end() || right == vocabulary.ids.end()) continue;
      all.push_back({by_order ? -static_cast<float>(id) : scores[id], k + 1, cut_count - k, id,
                     left->second, right->second, Merge(token.substr(0, cut), token.substr(cut))});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Candidate& a, const Candidate& b) { return a.rank() < b.rank(); });
  std::vector<Merge> merges;
  merges.reserve(all.size());
  for (const Candidate& c : all) merges.push_back(c.merge);
  return merges;
}

// {"type":"BPE", ...}, written directly because it has up to a million strings.
std::string model_json(const json& settings, const GgufVocabulary& vocabulary,
                       const std::vector<Merge>& merges) {
  std::string out = settings.dump();
  out.back() = ',';  // replaces the closing brace
  out += "\"vocab\":{";
  bool first = true;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.used(id)) continue;
    if (!std::exchange(first, false)) out += ',';
    append_json_string(&out, vocabulary.tokens[id]);
    absl::StrAppend(&out, ":", id);
  }
  out += "},\"merges\":[";
  for (size_t i = 0; i < merges.size(); ++i) {
    out += i == 0 ? "[" : ",[";
    append_json_string(&out, merges[i].first);
    out += ',';
    append_json_string(&out, merges[i].second);
    out += ']';
  }
  return out + "]}";
}

std::string byte_level_bpe(GgufFields& fields, const Pre& pre, const GgufVocabulary& vocabulary) {
  if (!fields.present("tokenizer.ggml.merges")) {
    fields.refuse("tokenizer.ggml.merges", "missing", "the merges of a byte-level vocabulary");
  }
  const std::vector<Merge> merges = read_merges(fields, vocabulary);
  json parts = {{"added_tokens", vocabulary.added_tokens()},
                {"pre_tokenizer", words_json(pre)},
                {"decoder", byte_level(true)},
                {"post_processor", vocabulary.post_processor(fields, pre.add_bos, false)}};
  if (pre.nfc) parts["normalizer"] = {{"type", "NFC"}};
  const json settings = {{"type", "BPE"},
                         {"unk_token", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", pre.ignore_merges}};
  return tokenizer_json_of(std::move(parts), model_json(settings, vocabulary, merges));
}

std::string sentencepiece_bpe(GgufFields& fields, const GgufVocabulary& vocabulary, bool gemma) {
  const std::vector<float> scores = vocabulary.scores(fields);
  const bool prefix = fields.boolean("tokenizer.ggml.add_space_prefix", true);
  const std::optional<size_t> unknown = vocabulary.id_of(fields, "unknown_token_id");
  if (!fields.status().ok()) return "";
  const std::vector<Merge> merges = fields.present("tokenizer.ggml.merges")
                                        ? read_merges(fields, vocabulary)
                                        : derive_merges(vocabulary, scores, gemma);
  json normalizers = json::array(), decoders = json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kGgufSpace}});
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kGgufSpace}});
  decoders.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", kGgufSpace}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  json parts = {{"added_tokens", vocabulary.added_tokens()},
                {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                {"post_processor", vocabulary.post_processor(fields, true, false)}};
  json settings = {{"type", "BPE"}, {"fuse_unk", true}, {"byte_fallback", true}};
  settings["unk_token"] = unknown ? json(vocabulary.tokens[*unknown]) : json(nullptr);
  return tokenizer_json_of(std::move(parts), model_json(settings, vocabulary, merges));
}

// Gemma's tokens of several spaces are stored with plain spaces.
void respell_spaces(GgufVocabulary& vocabulary) {
  for (std::string& token : vocabulary.tokens) {
    if (token.empty() || token.find_first_not_of(' ') != std::string::npos) continue;
    std::string marks;
    for (size_t i = 0; i < token.size(); ++i) marks += "\u2581";
    token = marks;
  }
}

std::string config_json(GgufFields& fields, const Gguf& gguf, const GgufVocabulary& vocabulary) {
  json config = {{"clean_up_tokenization_spaces", false}};
  struct Named {
    const char *name, *key;
  };
  constexpr std::array<Named, 7> kNamed{{{"bos_token", "bos_token_id"},
                                         {"eos_token", "eos_token_id"},
                                         {"unk_token", "unknown_token_id"},
                                         {"sep_token", "seperator_token_id"},  // (sic)
                                         {"pad_token", "padding_token_id"},
                                         {"cls_token", "cls_token_id"},
                                         {"mask_token", "mask_token_id"}}};
  for (const Named& named : kNamed) {
    const std::optional<size_t> id = vocabulary.id_of(fields, named.key);
    if (id && fields.status().ok()) config[named.name] = vocabulary.tokens[*id];
  }
  json templates = json::array();
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  for (const auto& [key, value] : gguf.metadata) {
    const bool one = key == kTemplate;
    if (!one && !absl::StartsWith(key, absl::StrCat(std::string(kTemplate), "."))) continue;
    templates.push_back({{"name", one ? "default" : key.substr(kTemplate.size() + 1)},
                         {"template", fields.text(key, std::nullopt)}});
  }
  if (!templates.empty()) config["chat_template"] = templates;
  return fields.status().ok() ? config.dump() : "";
}

}  // namespace

absl::StatusOr<GgufTokenizer> gguf_tokenizer(const Gguf& gguf, absl::string_view name) {
  GgufFields fields(gguf, name);
  const std::string model = fields.text("tokenizer.ggml.model", std::nullopt);
  const bool unigram = model == "t5";
  const bool sentencepiece = model == "llama" || unigram;
  if (!sentencepiece && model != "gpt2") {
    fields.refuse("tokenizer.ggml.model", quote_value(model), "gpt2, llama, t5");
  }
  const bool gemma = absl::StartsWith(fields.text("general.architecture", ""), "gemma");
  const Pre* const pre = sentencepiece ? nullptr : find_pre(fields);
  GgufVocabulary vocabulary;
  if (fields.status().ok()) vocabulary = GgufVocabulary::read(fields, sentencepiece);
  if (gemma && sentencepiece) respell_spaces(vocabulary);
  if (fields.status().ok()) vocabulary.index(fields);
  TANDEM_RETURN_IF_ERROR(fields.status());

  GgufTokenizer tokenizer;
  tokenizer.tokenizer_json = unigram         ? gguf_unigram(fields, vocabulary)
                             : sentencepiece ? sentencepiece_bpe(fields, vocabulary, gemma)
                                             : byte_level_bpe(fields, *pre, vocabulary);
  tokenizer.tokenizer_config_json = config_json(fields, gguf, vocabulary);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return tokenizer;
}

}  // namespace tandem
