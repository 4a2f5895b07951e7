// A grammar of a byte for its kind, and as parts between NUL bytes its text, a whitespace pattern
// and the choices of a walk.
//
// Of a grammar that compiles: a token is consumed if and only if the mask has it, forced tokens are
// legal, a rollback restores the mask, and a copy has it too.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/text/grammar.h"
#include "engine/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;
using Bits = std::vector<uint32_t>;

constexpr Token kEnd = 256;  // of Tokenizer::bytes()
constexpr int kKinds = 6;
constexpr size_t kMaxSteps = 64;

bool has(const Bits& bits, Token t) {
  return (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
}

// True if a step exceeded the limits, after which the matcher is not used again.
bool exceeded(const absl::Status& status) {
  if (status.ok()) return false;
  check(absl::IsResourceExhausted(status), "another error of a step", status.ToString());
  return true;
}

// The legal token at or after `from`, in a circle; -1 if there is none.
Token legal_from(const Bits& bits, Token from) {
  for (Token i = 0; i < kEnd; ++i) {
    const Token t = (from + i) % kEnd;
    if (has(bits, t)) return t;
  }
  return -1;
}

void check_same(GrammarMatcher& matcher, const Bits& expected, const char* what) {
  Bits bits(expected.size());
  const auto may_end = matcher.mask(bits);
  if (!exceeded(may_end.status())) check(bits == expected, what);
}

// Consumes `token`, and checks each way of asking for it. False where the walk ends.
bool step(GrammarMatcher& matcher, const Bits& bits, Token token) {
  const auto forced = matcher.forced();
  if (!forced.empty()) check(has(bits, forced[0]), "a forced token that is not legal");
  auto copy = matcher.copy();
  if (exceeded(copy.status())) return false;
  check_same(*copy, bits, "a copy with another mask");
  const std::vector<Token> one{token};
  const auto valid = matcher.validate(one);
  if (exceeded(valid.status())) return false;
  check(*valid == 1, "a legal token that is not valid");
  const auto consumed = matcher.advance(one);
  if (exceeded(consumed.status())) return false;
  check(*consumed == 1, "a legal token that is not consumed");
  if (exceeded(matcher.rollback(1))) return false;
  check_same(matcher, bits, "another mask after a rollback");
  const auto again = matcher.advance(one);
  return !exceeded(again.status());
}

void walk(GrammarMatcher& matcher, size_t mask_words, const std::string& choices) {
  for (size_t i = 0; i < choices.size() && i < kMaxSteps; ++i) {
    Bits bits(mask_words);
    const auto may_end = matcher.mask(bits);
    if (exceeded(may_end.status())) return;
    check(*may_end == has(bits, kEnd), "an end that is not in the mask");
    const Token wanted = static_cast<unsigned char>(choices[i]);
    if (!has(bits, wanted)) {
      const auto valid = matcher.validate(std::vector<Token>{wanted});
      if (exceeded(valid.status())) return;
      check(*valid == 0, "a token that is valid and not legal");
    }
    const Token token = legal_from(bits, wanted);
    if (token < 0 || !step(matcher, bits, token)) return;
  }
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const auto words = *GrammarVocabulary::of(*Tokenizer::bytes(), {kEnd});
  if (size == 0) return 0;
  const auto parts = fuzz::parts_of(data + 1, size - 1, 3);
  auto matcher =
      words->compile({static_cast<GrammarSpec::Kind>(data[0] % kKinds), parts[0], parts[1]});
  if (!matcher.ok()) {
    fuzz::check_refusal(matcher.status());
    return 0;
  }
  walk(*matcher, words->mask_words(), parts[2]);
  return 0;
}
