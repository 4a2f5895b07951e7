// tokenizer.json and tokenizer_config.json, well-formed or not, and a text for what they make, as
// parts between NUL bytes.
//
// Of a tokenizer that loads: ids are of its vocabulary, texts are UTF-8, and tokens one by one give
// the text of all of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/stream_decoder.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/temp_dir.h"

namespace tandem {
namespace {

using fuzz::check;

void check_utf8(const std::string& text) {
  check(valid_utf8_prefix(text) == text.size(), "text that is no UTF-8", text);
}

// Only the text of vocabularies that are read piece by piece is the same in any case.
void check_stream(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<Token>& ids,
                  bool cleans_up) {
  for (const bool skip : {false, true}) {
    StreamDecoder decoder(tokenizer, skip);
    std::string text;
    for (size_t i = 0; i <= ids.size(); ++i) {
      std::string piece;
      i < ids.size() ? decoder.push(ids[i], piece) : decoder.finish(piece);
      check_utf8(piece);
      text += piece;
    }
    const auto whole = tokenizer->decode(ids, skip);
    if (!whole.ok() || cleans_up || tokenizer->pieces().kind() == PieceKind::kOpaque) continue;
    check(text == *whole, "a stream that differs", text + " | " + *whole);
  }
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const test::TempDir folder;
  const auto parts = fuzz::parts_of(data, size, 3);
  folder.write("tokenizer.json", parts[0]);
  folder.write("tokenizer_config.json", parts[1].empty() ? "{}" : parts[1]);
  const auto tokenizer = Tokenizer::load(folder.path());
  if (!tokenizer.ok()) {
    fuzz::check_refusal(tokenizer.status());
    return 0;
  }
  const int vocab = (*tokenizer)->vocab_size();
  check(vocab > 0);
  const bool cleans_up = parts[1].find("clean_up_tokenization_spaces") != std::string::npos;
  for (const std::string& text :
       {parts[2], std::string("Hello <s>a b</s> \xC3\xA9\xF0\x9F\xAB\xA0")}) {
    const bool valid = valid_utf8_prefix(text) == text.size();
    for (const auto special : {SpecialText::kParse, SpecialText::kPlain}) {
      const auto ids = (*tokenizer)->encode(text, true, special);
      check(valid || !ids.ok(), "ids of what is no UTF-8", text);
      if (!ids.ok()) continue;
      for (const Token id : *ids) check(id >= 0 && id < vocab, "an id past the vocabulary");
      const auto back = (*tokenizer)->decode(*ids, false);
      if (back.ok()) check_utf8(*back);
      check_stream(*tokenizer, *ids, cleans_up);
    }
  }
  std::vector<Token> all;
  for (Token id = 0; id < std::min(vocab, 300); ++id) all.push_back(id);
  check_stream(*tokenizer, all, cleans_up);
  return 0;
}
