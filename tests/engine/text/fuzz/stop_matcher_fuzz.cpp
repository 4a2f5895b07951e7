// Stop strings and a text in pieces, of any bytes: the automaton finds what a plain search finds,
// and holds back no more than could become a stop. The characters on the way are those that the
// whole text has.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/stop_matcher.h"
#include "engine/text/utf8.h"
#include "tests/engine/text/stop_reference.h"
#include "tests/fuzz/fuzz.h"

namespace tandem {
namespace {

using fuzz::check;

// Is some end of `text` the beginning of a stop, and how long is the longest?
size_t may_become_a_stop(const std::vector<std::string>& stops, const std::string& text) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(stop.size(), text.size()); n > longest; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

void check_stops(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                 bool include) {
  StopMatcher matcher(stops, include);
  std::string text, released;
  for (const std::string& piece : pieces) {
    text += piece;
    const auto found = matcher.push(piece, released);
    if (!found) check(released.size() + may_become_a_stop(stops, text) == text.size(), "held");
  }
  matcher.finish(released);
  const test::StopResult expected = test::find_stop(stops, include, text);
  check(matcher.matched() == expected.stop, "another stop", text);
  check(released == expected.text, "another text", released);
}

void check_characters(const std::vector<std::string>& pieces) {
  Utf8Assembler by_piece, at_once;
  std::string text, by_pieces, whole;
  for (const std::string& piece : pieces) {
    text += piece;
    by_piece.push(piece, by_pieces);
    check(valid_utf8_prefix(by_pieces) == by_pieces.size(), "half a character");
  }
  by_piece.finish(by_pieces);
  at_once.push(text, whole);
  at_once.finish(whole);
  check(by_pieces == whole, "characters that depend on the cuts");
  if (valid_utf8_prefix(text) == text.size()) check(whole == text, "a changed text");
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  const bool include = in.ConsumeBool();
  std::vector<std::string> stops(in.ConsumeIntegralInRange<size_t>(0, 6)), pieces;
  for (std::string& stop : stops) stop = in.ConsumeRandomLengthString(12);
  while (in.remaining_bytes() > 0 && pieces.size() < 64) {
    pieces.push_back(in.ConsumeRandomLengthString(24));
  }
  tandem::check_stops(stops, pieces, include);
  tandem::check_characters(pieces);
  return 0;
}
