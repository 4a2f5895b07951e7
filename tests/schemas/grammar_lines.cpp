// Compiles constraints and follows texts, for the tests in this folder.
//
//   grammar_lines [TOKENIZER]   a model directory or a GGUF file; without it, bytes are tokens
//
// Reads one JSON object a line: `kind` (see kKinds), `text`, `whitespace`; `groups`, lists of
// texts; `walks`, a number of random answers, with `seed` and `most`, their tokens at most.
//
// Writes one JSON object a line: `error`, or `accepted`, for each group whether one of its texts is
// an answer; `walks`, texts, null if not complete; `compile_us`, `mask_us` and `warm_us`,
// microseconds of processor time; `slowest`, the text before the slowest of `mask_us`. `warm_us`
// are the masks of the same texts by a matcher that has followed all of them before.
//
// A text is followed token by token. Each mask must agree with what the matcher consumes. Fixed
// parts of a text are followed in the spelling that the mask allows.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/backend/torch/weights/gguf/file.h"
#include "engine/backend/torch/weights/gguf/tokenizer.h"
#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"

namespace tandem {
namespace {

using Json = nlohmann::json;
using Kind = GrammarSpec::Kind;

const std::map<std::string, Kind> kKinds = {
    {"json_schema", Kind::kJsonSchema},
    {"json_object", Kind::kJsonObject},
    {"regex", Kind::kRegex},
    {"choice", Kind::kChoice},
    {"grammar", Kind::kGrammar},
    {"structural_tag", Kind::kStructuralTag},
};

absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer_of(const std::string& path) {
  if (path.empty()) return Tokenizer::bytes();
  if (!absl::EndsWith(path, ".gguf")) return Tokenizer::load(path);
  const absl::StatusOr<GgufFile> file = GgufFile::open(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<GgufTokenizer> texts = gguf_tokenizer(file->content, path);
  if (!texts.ok()) return texts.status();
  return Tokenizer::parse(path, texts->tokenizer_json, texts->tokenizer_config_json);
}

// Microseconds of processor time of this program: other programs do not lengthen it.
int64_t now_us() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000 + time.tv_nsec / 1000;
}

// The last special token: an end-of-text token for these tests.
Token end_of(const Tokenizer& tokenizer) {
  Token end = tokenizer.vocab_size() - 1;
  while (end > 0 && !tokenizer.is_special(end)) --end;
  return end;
}

class Lines {
 public:
  Lines(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const GrammarVocabulary> words)
      : tokenizer_(std::move(tokenizer)), words_(std::move(words)), bits_(words_->mask_words()) {}

  Json answer(const Json& line) {
    mask_us_.clear();
    slowest_us_ = -1;
    const int64_t before = now_us();
    const absl::StatusOr<GrammarMatcher> start =
        words_->compile({kKinds.at(line.value("kind", "json_schema")), line.at("text"),
                         line.value("whitespace", "")});
    const int64_t compile_us = now_us() - before;
    Json out = {{"compile_us", compile_us}};
    if (!start.ok()) {
      out["error"] = std::string(start.status().message());
      return out;
    }
    out["accepted"] = Json::array();
    for (const Json& group : line.value("groups", Json::array())) {
      bool accepted = false;
      for (const Json& text : group) {
        if (accepted) break;
        absl::StatusOr<GrammarMatcher> m = start->copy();
        accepted = m.ok() && follow(*m, text);
        note_failure();
      }
      out["accepted"].push_back(accepted);
    }
    out["slowest"] = slowest_;
    std::mt19937_64 rng(line.value("seed", 1));
    for (int i = 0; i < line.value("walks", 0); ++i) {
      out["walks"].push_back(walk(*start, line.value("most", 400), rng));
      note_failure();
    }
    out["mask_us"] = std::exchange(mask_us_, {});
    if (line.value("warm", false))
      out["warm_us"] = warm(*start, line.value("groups", Json::array()));
    if (!first_failed_.empty()) out["failed"] = std::exchange(first_failed_, "");
    return out;
  }

 private:
  void note_failure() {
    const std::string failed = std::exchange(failed_, "");
    if (first_failed_.empty()) first_failed_ = failed;
  }

  bool has(Token t) const {
    const auto i = static_cast<size_t>(t);
    return i / 32 < bits_.size() && (bits_[i / 32] >> (i % 32) & 1) != 0;
  }

  // Times of all masks, by one matcher that goes back to the start after each text.
  std::vector<int64_t> warm(const GrammarMatcher& start, const Json& groups) {
    absl::StatusOr<GrammarMatcher> m = start.copy();
    for (int pass = 0; pass < 2 && m.ok(); ++pass) {
      mask_us_.clear();
      for (const Json& group : groups) {
        for (const Json& text : group) {
          follow(*m, text);
          if (failed_.empty()) continue;
          failed_.clear();
          m = start.copy();
          if (!m.ok()) break;
        }
      }
    }
    return std::exchange(mask_us_, {});
  }

  // Fills bits_. Returns whether the text may end.
  bool mask(GrammarMatcher& m) {
    const int64_t before = now_us();
    const absl::StatusOr<bool> may_end = m.mask(bits_);
    mask_us_.push_back(now_us() - before);
    if (!may_end.ok()) {
      failed_ = std::string(may_end.status().message());
      std::ranges::fill(bits_, 0);
    }
    return may_end.ok() && *may_end;
  }

  // The token that is legal alone; -1: there are more, or none. There the text is fixed, and the
  // mask has it in the tokenizer's own spelling. The matcher consumes every spelling.
  Token only_legal() const {
    Token only = -1;
    for (size_t i = 0; i < bits_.size(); ++i) {
      if (bits_[i] == 0) continue;
      if (only >= 0 || !std::has_single_bit(bits_[i])) return -1;
      only = static_cast<Token>(32 * i) + std::countr_zero(bits_[i]);
    }
    return only;
  }

  // Consumes t, number i of a text, if it is legal. Fills failed_ if the matcher contradicts.
  bool consume(GrammarMatcher& m, Token t, size_t i) {
    const bool legal = has(t);
    const absl::StatusOr<size_t> consumed = m.validate(std::vector<Token>{t});
    const absl::StatusOr<size_t> advanced =
        legal && consumed.ok() ? m.advance(std::vector<Token>{t}) : consumed;
    if (!advanced.ok()) {
      failed_ = std::string(advanced.status().message());
    } else if (*consumed != *advanced || (*consumed == 1) != legal) {
      const Token only = only_legal();
      const std::string fixed = only >= 0 ? tokenizer_->token_bytes(only) : "";
      const std::string bytes = tokenizer_->token_bytes(t);
      const bool spelling =
          !legal && only >= 0 && (absl::StartsWith(fixed, bytes) || absl::StartsWith(bytes, fixed));
      if (!spelling) {
        failed_ = absl::StrCat("the mask ", legal ? "allows" : "forbids", " token ", t, " at ", i,
                               ", and the matcher ", legal ? "refuses" : "consumes", " it");
      }
    }
    return legal && failed_.empty();
  }

  // Whether the text is an answer. `m` is at the start, before and after.
  bool follow(GrammarMatcher& m, const std::string& text) {
    absl::StatusOr<std::vector<Token>> path = tokenizer_->encode(text, false, SpecialText::kPlain);
    size_t at = 0;    // in the text
    size_t next = 0;  // in the path, which is that of the rest of the text
    size_t consumed = 0;
    bool accepted = false;
    while (path.ok()) {
      const bool may_end = mask(m);
      if (!failed_.empty()) return false;
      if (mask_us_.back() > slowest_us_) {
        slowest_us_ = mask_us_.back();
        slowest_ = text.substr(0, at);
      }
      if (next == path->size()) {
        accepted = may_end;
        break;
      }
      Token t = (*path)[next++];
      if (const Token only = only_legal(); !has(t) && only >= 0) {
        const std::string fixed = tokenizer_->token_bytes(only);
        if (!fixed.empty() && absl::StartsWith(text.substr(at), fixed)) {
          t = only;
          next = 0;
          path = tokenizer_->encode(text.substr(at + fixed.size()), false, SpecialText::kPlain);
        }
      }
      if (!consume(m, t, consumed)) {
        if (!failed_.empty()) return false;
        break;
      }
      ++consumed;
      at += tokenizer_->token_bytes(t).size();
    }
    if (!m.rollback(consumed).ok()) failed_ = "the matcher does not go back";
    return accepted;
  }

  // Uniformly random among the legal tokens, but in each fourth step among those that close.
  Json walk(const GrammarMatcher& start, int most, std::mt19937_64& rng) {
    absl::StatusOr<GrammarMatcher> m = start.copy();
    if (!m.ok()) return nullptr;
    std::string text;
    for (int step = 0; step < most; ++step) {
      const bool may_end = mask(*m);
      if (!failed_.empty()) return nullptr;
      if (may_end && (rng() & 3) == 0) return text;
      std::vector<Token> legal;
      std::vector<Token> closing;
      for (Token t = 0; t < tokenizer_->vocab_size(); ++t) {
        if (!has(t) || t == words_->ends()[0]) continue;
        legal.push_back(t);
        const std::string bytes = tokenizer_->token_bytes(t);
        if (bytes == "\"" || bytes == "}" || bytes == "]") closing.push_back(t);
      }
      if (legal.empty()) return may_end ? Json(text) : Json(nullptr);
      const std::vector<Token>& from = closing.empty() || (rng() & 3) != 0 ? legal : closing;
      const Token t = from[rng() % from.size()];
      if (!consume(*m, t, static_cast<size_t>(step))) return nullptr;
      text += tokenizer_->token_bytes(t);
    }
    return nullptr;
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const GrammarVocabulary> words_;
  std::vector<uint32_t> bits_;
  std::vector<int64_t> mask_us_;
  int64_t slowest_us_ = -1;
  std::string slowest_;
  std::string failed_;        // of the current text: a limit, or a contradiction
  std::string first_failed_;  // of the current line
};

int run(const std::string& path) {
  auto tokenizer = tokenizer_of(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  auto words = GrammarVocabulary::of(**tokenizer, {end_of(**tokenizer)});
  if (!words.ok()) {
    std::cerr << words.status() << "\n";
    return 1;
  }
  Lines lines(*tokenizer, *words);
  for (std::string line; std::getline(std::cin, line);) {
    // Texts may hold bytes that are not UTF-8.
    std::cout << lines.answer(Json::parse(line)).dump(-1, ' ', true, Json::error_handler_t::replace)
              << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run(argc > 1 ? argv[1] : ""); }
